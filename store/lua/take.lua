#!lua flags=allow-oom
-- Lease tickets: first those whose lease ran out, then new ones.
-- KEYS: tickets, counters, refused
-- ARGV: consumer group, consumer, count, lease in ms, cursor, most deliveries, log length,
--       then the ids that the consumer still works on
-- Returns {cursor, {{id, problem, deliveries}, ...}, id of the newest entry ever delivered ('' unless none was taken)}.
-- A ticket that the consumer still works on is renewed, not returned; one that has failed too often is set aside.
local held = {}
for i = 8, #ARGV do held[ARGV[i]] = true end
local count, taken = tonumber(ARGV[3]), {}
local claim = redis.call('XAUTOCLAIM', KEYS[1], ARGV[1], ARGV[2], ARGV[4], ARGV[5], 'COUNT', count)
for _, entry in ipairs(claim[2]) do
  if not held[entry[1]] then
    local deliveries = redis.call('XPENDING', KEYS[1], ARGV[1], entry[1], entry[1], 1)[1][4]
    if deliveries <= tonumber(ARGV[6]) then
      taken[#taken + 1] = {entry[1], entry[2][2], deliveries}
    else
      redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[7], '*', 'ticket', entry[1], 'problem', entry[2][2],
        'consumer', ARGV[2], 'reason', 'poison: no actor ended it in ' .. ARGV[6] .. ' deliveries', 'errors', 0)
      redis.call('XACK', KEYS[1], ARGV[1], entry[1])
      redis.call('XDEL', KEYS[1], entry[1])
      redis.call('HINCRBY', KEYS[2], 'poisoned', 1)
      redis.call('HINCRBY', KEYS[2], 'refunded', 1)
    end
  end
end
if #taken < count then
  local fresh = redis.call('XREADGROUP', 'GROUP', ARGV[1], ARGV[2], 'COUNT', count - #taken, 'STREAMS', KEYS[1], '>')
  if fresh then
    for _, entry in ipairs(fresh[1][2]) do taken[#taken + 1] = {entry[1], entry[2][2], 1} end
  end
end
local newest = ''
if #taken == 0 then
  for _, group in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
    local info = {}
    for i = 1, #group, 2 do info[group[i]] = group[i + 1] end
    if info['name'] == ARGV[1] then newest = info['last-delivered-id'] end
  end
end
return {claim[1], taken, newest}
