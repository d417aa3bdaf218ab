#!lua flags=allow-oom
-- Let groups leave the pool, once each. Every reason but `used` gives the ticket's admission back.
-- KEYS: live, counters, used_at, garbage, then groups   ARGV: reason, then the id of each group
-- Returns {how many left, {payload ids to delete, also of callers that died before they could}}.
local reason, left, freed = ARGV[1], 0, 0
for i = 5, #KEYS do
  if redis.call('SREM', KEYS[1], ARGV[i - 3]) == 1 then
    local fact = redis.call('HMGET', KEYS[i], 'payload', 'bytes', 'last_step')
    redis.call('SADD', KEYS[4], fact[1])
    if reason == 'used' then redis.call('HINCRBY', KEYS[3], fact[3] or '-1', 1) end
    redis.call('DEL', KEYS[i])
    left, freed = left + 1, freed + tonumber(fact[2])
  end
end
if left > 0 then
  redis.call('HINCRBY', KEYS[2], reason, left)
  redis.call('HINCRBY', KEYS[2], 'live_bytes', -freed)
  if reason ~= 'used' then redis.call('HINCRBY', KEYS[2], 'refunded', left) end
end
return {left, redis.call('SRANDMEMBER', KEYS[4], left + 64)}
