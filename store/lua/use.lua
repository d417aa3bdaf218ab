#!lua flags=allow-oom
-- Record that groups were drawn at a step. A repeat of the same step counts nothing twice.
-- KEYS: counters, then groups   ARGV: step
-- Returns how many were recorded now; a group that has left is passed over.
local step, drawn = tonumber(ARGV[1]), 0
for i = 2, #KEYS do
  local fact = redis.call('HMGET', KEYS[i], 'steps', 'last_step')
  if fact[1] and (not fact[2] or tonumber(fact[2]) < step) then
    local steps = fact[1] == '' and ARGV[1] or fact[1] .. ',' .. ARGV[1]
    redis.call('HSET', KEYS[i], 'steps', steps, 'last_step', ARGV[1])
    redis.call('HINCRBY', KEYS[i], 'uses', 1)
    drawn = drawn + 1
  end
end
if drawn > 0 then redis.call('HINCRBY', KEYS[1], 'drawn', drawn) end
return drawn
