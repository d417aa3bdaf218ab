#!lua
-- Add tickets while issued - refunded < limit.
-- KEYS: tickets, counters, issued, then the problem of each ticket
-- ARGV: nonce of this call, limit, then the problem id of each ticket
-- Returns how many were added: a prefix of those asked for. A retry with the same nonce adds nothing.
if redis.call('HGET', KEYS[3], 'nonce') == ARGV[1] then
  return tonumber(redis.call('HGET', KEYS[3], 'added'))
end
for i = 4, #KEYS do
  if redis.call('EXISTS', KEYS[i]) == 0 then
    return redis.error_reply('VERGE a ticket was asked for problem ' .. ARGV[i - 1] .. ', which the store does not have')
  end
end
local count = redis.call('HMGET', KEYS[2], 'issued', 'refunded')
local room = tonumber(ARGV[2]) - ((tonumber(count[1]) or 0) - (tonumber(count[2]) or 0))
local added = math.max(0, math.min(room, #ARGV - 2))
for i = 3, added + 2 do redis.call('XADD', KEYS[1], '*', 'problem', ARGV[i]) end
if added > 0 then redis.call('HINCRBY', KEYS[2], 'issued', added) end
redis.call('HSET', KEYS[3], 'nonce', ARGV[1], 'added', added)
return added
