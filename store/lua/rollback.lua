#!lua flags=allow-oom
-- Forget the draws after a step: the learner resumes from a checkpoint of that step.
-- KEYS: live, counters, used_at   ARGV: step, prefix of a group's key
-- Returns how many live groups lost a use. Groups that had left as used are refunded: what they taught is lost, and
-- without the refund the admission limit of the earlier step could never be met again.
local step, changed = tonumber(ARGV[1]), 0
for _, id in ipairs(redis.call('SMEMBERS', KEYS[1])) do
  local key = ARGV[2] .. id
  local fact = redis.call('HMGET', key, 'steps', 'last_step')
  if fact[2] and tonumber(fact[2]) > step then
    local kept = {}
    for at in string.gmatch(fact[1], '%d+') do
      if tonumber(at) <= step then kept[#kept + 1] = at end
    end
    redis.call('HSET', key, 'uses', #kept, 'steps', table.concat(kept, ','))
    if #kept > 0 then redis.call('HSET', key, 'last_step', kept[#kept]) else redis.call('HDEL', key, 'last_step') end
    changed = changed + 1
  end
end
local used = redis.call('HGETALL', KEYS[3])
for i = 1, #used, 2 do
  if tonumber(used[i]) > step then
    redis.call('HINCRBY', KEYS[2], 'refunded', used[i + 1])
    redis.call('HINCRBY', KEYS[2], 'rolled_back', used[i + 1])
    redis.call('HDEL', KEYS[3], used[i])
  end
end
return changed
