#!lua
-- Turn a ticket into evidence, once (DESIGN §4).
-- KEYS: tickets, counters, groups, live, problem, group
-- ARGV: consumer group, group id (= ticket id), problem id, G, c, errors, version_min, version_max, tokens,
--       payload id, payload bytes, meta (a key, but in KEYS it would have to be one that an actor may write)
-- Returns 1 when the group is committed by this attempt (also when a retry finds it so), 0 when its ticket has ended.
local id, problem, G, c = ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local ticket = redis.call('XRANGE', KEYS[1], id, id)[1]
if not ticket or ticket[2][2] ~= problem then
  if redis.call('HGET', KEYS[6], 'payload') == ARGV[10] then return 1 end
  redis.call('HINCRBY', KEYS[2], 'duplicate', 1)
  return 0
end

local gamma = tonumber(redis.call('HGET', ARGV[12], 'gamma'))
local w = tonumber(ARGV[7])
local fact = redis.call('HMGET', KEYS[5], 'a', 'b', 'version', 'n', 's', 'groups', 'first_success', 'last_success')
for i = 1, 6 do fact[i] = tonumber(fact[i]) or 0 end
local a, b, v = fact[1], fact[2], fact[3]
if w >= v then
  local keep = gamma ^ (w - v)
  a, b, v = keep * a + c, keep * b + (G - c), w
else
  local keep = gamma ^ (v - w)
  a, b = a + keep * c, b + keep * (G - c)
end

-- The first write: if the server refuses it (memory, disk), nothing has happened.
local entry = redis.call('XADD', KEYS[3], '*', 'id', id, 'problem', problem, 'G', ARGV[4], 'c', ARGV[5],
  'version_min', ARGV[7], 'version_max', ARGV[8], 'tokens', ARGV[9])
local first, last = fact[7] or '', fact[8] or ''
if c > 0 then first, last = first ~= '' and first or entry, entry end
-- %.17g: Lua's own tostring keeps 14 digits, a double has 17.
redis.call('HSET', KEYS[5], 'a', string.format('%.17g', a), 'b', string.format('%.17g', b),
  'version', string.format('%.0f', v), 'n', string.format('%.0f', fact[4] + G), 's', string.format('%.0f', fact[5] + c),
  'groups', string.format('%.0f', fact[6] + 1), 'last_seen', entry, 'first_success', first, 'last_success', last)
redis.call('HSET', KEYS[6], 'entry', entry, 'problem', problem, 'G', ARGV[4], 'c', ARGV[5], 'version_min', ARGV[7],
  'version_max', ARGV[8], 'tokens', ARGV[9], 'uses', 0, 'steps', '', 'payload', ARGV[10], 'bytes', ARGV[11])
redis.call('SADD', KEYS[4], id)
redis.call('XACK', KEYS[1], ARGV[1], id)
redis.call('XDEL', KEYS[1], id)
redis.call('HINCRBY', KEYS[2], 'committed', 1)
redis.call('HINCRBY', KEYS[2], 'live_bytes', ARGV[11])
redis.call('HINCRBY', KEYS[2], 'payload_bytes', ARGV[11])
if ARGV[6] ~= '0' then redis.call('HINCRBY', KEYS[2], 'errors', ARGV[6]) end
return 1
