#!lua
-- Add tickets while issued - refunded < limit, and while what they yield will fit into the pool's limits, if meta has any.
-- KEYS: tickets, counters, issued, live, then the problem of each ticket
-- ARGV: nonce of this call, limit, meta, then the problem id of each ticket
-- Returns {how many were added: a prefix of those asked for, how many more there is room for, which limit is the
-- nearest: 'admission', 'groups' or 'bytes'}. A retry with the same nonce adds nothing.
local said = redis.call('HMGET', KEYS[3], 'nonce', 'added')
local again = said[1] == ARGV[1]
for i = 5, #KEYS do
  if redis.call('EXISTS', KEYS[i]) == 0 then
    return redis.error_reply('VERGE a ticket was asked for problem ' .. ARGV[i - 1] .. ', which the store does not have')
  end
end
local count = redis.call('HMGET', KEYS[2], 'issued', 'refunded', 'live_bytes', 'payload_bytes', 'committed')
for i = 1, 5 do count[i] = tonumber(count[i]) or 0 end
local most = redis.call('HMGET', ARGV[3], 'max_groups', 'max_payload_bytes')
local open, live = redis.call('XLEN', KEYS[1]), redis.call('SCARD', KEYS[4])
local room, nearest = tonumber(ARGV[2]) - (count[1] - count[2]), 'admission'
local function at_most(rest, name) if rest < room then room, nearest = rest, name end end
if most[1] then at_most(tonumber(most[1]) - live - open, 'groups') end
if most[2] and count[5] > 0 then
  -- A ticket will bring as many bytes as the mean group, of all or of the pool, whichever is larger.
  local bytes = math.max(count[4] / count[5], live > 0 and count[3] / live or 0)
  at_most(math.floor((tonumber(most[2]) - count[3]) / bytes) - open, 'bytes')
end
room = math.max(room, 0)
local added = again and tonumber(said[2]) or math.min(room, #ARGV - 3)
if not again and #ARGV > 3 then
  for i = 4, added + 3 do redis.call('XADD', KEYS[1], '*', 'problem', ARGV[i]) end
  if added > 0 then redis.call('HINCRBY', KEYS[2], 'issued', added) end
  redis.call('HSET', KEYS[3], 'nonce', ARGV[1], 'added', added)
  room = room - added
end
return {added, room, nearest}
