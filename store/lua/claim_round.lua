#!lua flags=allow-oom
-- Begin an evaluation round at a version, or renew its lease: one at a time, and only when one is due.
-- KEYS: evaluating, evaluations   ARGV: token, version, versions between rounds, lease in ms, weights:log
-- Returns {the learner's step of the version} while the round is the caller's, else {}.
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return {} end
if not holder then
  local last = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)[1]
  if last and tonumber(last[2][2]) + tonumber(ARGV[3]) > tonumber(ARGV[2]) then return {} end
end
local id = ARGV[2] .. '-1'
local manifest = redis.call('XRANGE', ARGV[5], id, id)[1]
if not manifest then return {} end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[4])
return {manifest[2][10]}
