#!lua
-- Keep what an evaluation round has found, whole, once: if it is the caller's still, or nobody's and due still.
-- KEYS: evaluating, evaluations
-- ARGV: token, version, versions between rounds, rounds that are kept, then pairs field, value
-- Returns 1 when it is kept (also when a retry finds it so), else 0.
local last = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)[1]
if last and last[2][4] == ARGV[1] then return 1 end
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
if last and tonumber(last[2][2]) + tonumber(ARGV[3]) > tonumber(ARGV[2]) then return 0 end
redis.call('XADD', KEYS[2], 'MAXLEN', ARGV[4], ARGV[2] .. '-1', 'version', ARGV[2], 'claim', ARGV[1],
  unpack(ARGV, 5))
redis.call('DEL', KEYS[1])
return 1
