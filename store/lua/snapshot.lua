#!lua flags=no-writes,allow-oom
-- All facts that change in place, as of one instant, so that counters, problems and pool agree. Logs only grow: of
-- them, where they end.
-- KEYS: live, problems, tickets, then the logs, then the hashes
-- ARGV: prefix of a group's key, prefix of a problem's, how many logs, then the fields of a problem that change
-- Returns msgpack of {ends of the logs ('' when empty), hashes, {{group, its hash}, …}, {{problem, its values}, …},
-- {entries of the tickets, the newest id}}.
local first_hash = 4 + tonumber(ARGV[3])
local ends, hashes, groups, problems = {}, {}, {}, {}
for i = 4, first_hash - 1 do
  local newest = redis.call('XREVRANGE', KEYS[i], '+', '-', 'COUNT', 1)[1]
  ends[#ends + 1] = newest and newest[1] or ''
end
for i = first_hash, #KEYS do hashes[#hashes + 1] = redis.call('HGETALL', KEYS[i]) end
for i, id in ipairs(redis.call('SMEMBERS', KEYS[1])) do
  groups[i] = {id, redis.call('HGETALL', ARGV[1] .. id)}
end
for i, id in ipairs(redis.call('LRANGE', KEYS[2], 0, -1)) do
  problems[i] = {id, redis.call('HMGET', ARGV[2] .. id, unpack(ARGV, 4))}
end
local info, newest = redis.call('XINFO', 'STREAM', KEYS[3]), ''
for i = 1, #info, 2 do if info[i] == 'last-generated-id' then newest = info[i + 1] end end
return cmsgpack.pack({ends, hashes, groups, problems, {redis.call('XRANGE', KEYS[3], '-', '+'), newest}})
