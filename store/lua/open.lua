#!lua
-- Create a run, or compare one that exists.
-- KEYS: meta, tickets   ARGV: consumer group, how many fields are compared, then pairs field, value, the compared first
-- Returns {} when it was created or agrees, else {field, stored value} of the first that differs.
if redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('HSET', KEYS[1], 'phase', 'running', 'reason', '', unpack(ARGV, 3))
  redis.call('XGROUP', 'CREATE', KEYS[2], ARGV[1], '0', 'MKSTREAM')
  return {}
end
for i = 3, 2 + 2 * tonumber(ARGV[2]), 2 do
  local stored = redis.call('HGET', KEYS[1], ARGV[i])
  if stored ~= ARGV[i + 1] then return {ARGV[i], stored or ''} end
end
return {}
