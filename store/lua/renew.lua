#!lua flags=allow-oom
-- Set the idle time of the leases that the consumer still has: 0 renews them, a lease's length or more gives them back.
-- KEYS: tickets   ARGV: consumer group, consumer, idle ms, then ticket ids
-- Returns how many it still had; another's lease is left alone. Giving back takes the delivery back too.
local kept = 0
for i = 4, #ARGV do
  local pending = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1, ARGV[2])[1]
  if pending then
    local deliveries = ARGV[3] == '0' and pending[4] or pending[4] - 1
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[i], 'IDLE', ARGV[3], 'RETRYCOUNT', deliveries, 'JUSTID')
    kept = kept + 1
  end
end
return kept
