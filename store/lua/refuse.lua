#!lua flags=allow-oom
-- End a ticket without evidence and give its admission back.
-- KEYS: tickets, counters, refused   ARGV: consumer group, ticket id, consumer, reason, error completions, log length
-- Returns 1, or 0 when the ticket had ended already.
local ticket = redis.call('XRANGE', KEYS[1], ARGV[2], ARGV[2])[1]
if not ticket then return 0 end
redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[6], '*', 'ticket', ARGV[2], 'problem', ticket[2][2],
  'consumer', ARGV[3], 'reason', ARGV[4], 'errors', ARGV[5])
redis.call('XACK', KEYS[1], ARGV[1], ARGV[2])
redis.call('XDEL', KEYS[1], ARGV[2])
redis.call('HINCRBY', KEYS[2], 'refused', 1)
redis.call('HINCRBY', KEYS[2], 'refunded', 1)
if ARGV[5] ~= '0' then redis.call('HINCRBY', KEYS[2], 'errors', ARGV[5]) end
return 1
