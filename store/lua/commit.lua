#!lua
-- Turn tickets into evidence, each once (DESIGN §4): the groups of one batch, so that they share what they can.
-- KEYS: tickets, counters, groups, live, then per group: problem, group
-- ARGV: consumer group, meta (a key, but in KEYS it would have to be one that an actor may write), msgpack of one array
--       per group: group id (= ticket id), problem id, G, c, errors, version_min, version_max, tokens, payload id,
--       payload bytes
-- Returns per group 1 when it is committed by this attempt (also when a retry finds it so), 0 when its ticket has ended.
local gamma = tonumber(redis.call('HGET', ARGV[2], 'gamma'))
local outcomes, ended, duplicates, bytes, errors = {}, {}, 0, 0, 0

local function discounted(a, b, v, w, c, G)
  if w >= v then
    local keep = gamma ^ (w - v)
    return keep * a + c, keep * b + (G - c), w
  end
  local keep = gamma ^ (v - w)
  return a + keep * c, b + keep * (G - c), v
end

local function commit(problem_key, group_key, id, problem, G, c, failed, low, high, tokens, payload, length)
  local ticket = redis.pcall('XRANGE', KEYS[1], id, id)[1]  -- an id that no stream can have is one group's fault
  if not ticket or ticket[2][2] ~= problem or ended[id] then
    if redis.call('HGET', group_key, 'payload') == payload then return 1 end
    duplicates = duplicates + 1
    return 0
  end
  local fact = redis.call('HMGET', problem_key, 'a', 'b', 'version', 'n', 's', 'groups', 'first_success', 'last_success')
  for i = 1, 6 do fact[i] = tonumber(fact[i]) or 0 end
  local a, b, v = discounted(fact[1], fact[2], fact[3], low, c, G)
  -- The first write: if the server refuses it (memory, disk), nothing has happened.
  local entry = redis.call('XADD', KEYS[3], '*', 'id', id, 'problem', problem, 'G', G, 'c', c,
    'version_min', low, 'version_max', high, 'tokens', tokens)
  local first, last = fact[7] or '', fact[8] or ''
  if c > 0 then first, last = first ~= '' and first or entry, entry end
  -- %.17g: Lua's own tostring keeps 14 digits, a double has 17.
  redis.call('HSET', problem_key, 'a', string.format('%.17g', a), 'b', string.format('%.17g', b),
    'version', string.format('%.0f', v), 'n', string.format('%.0f', fact[4] + G), 's', string.format('%.0f', fact[5] + c),
    'groups', string.format('%.0f', fact[6] + 1), 'last_seen', entry, 'first_success', first, 'last_success', last)
  redis.call('HSET', group_key, 'entry', entry, 'problem', problem, 'G', G, 'c', c, 'version_min', low,
    'version_max', high, 'tokens', tokens, 'uses', 0, 'steps', '', 'payload', payload, 'bytes', length)
  ended[#ended + 1], ended[id] = id, true
  bytes, errors = bytes + length, errors + failed
  return 1
end

for i, facts in ipairs(cmsgpack.unpack(ARGV[3])) do
  outcomes[i] = commit(KEYS[3 + 2 * i], KEYS[4 + 2 * i], unpack(facts))
end
local function count(name, by) if by ~= 0 then redis.call('HINCRBY', KEYS[2], name, string.format('%.0f', by)) end end
if #ended > 0 then
  redis.call('SADD', KEYS[4], unpack(ended))
  redis.call('XACK', KEYS[1], ARGV[1], unpack(ended))
  redis.call('XDEL', KEYS[1], unpack(ended))
end
count('committed', #ended)
count('live_bytes', bytes)
count('payload_bytes', bytes)
count('errors', errors)
count('duplicate', duplicates)
return outcomes
