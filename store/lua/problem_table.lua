#!lua flags=no-writes,allow-oom
-- Facts of problems in the order in which they were added, column by column: a cold start reads 10^5 of them, and a
-- number in a text costs its reader a tenth of a number on its own.
-- KEYS: problems   ARGV: prefix of a problem's key, first, last, an entry of the groups log, then fields, the last of
-- which is last_seen
-- Returns msgpack of {ids, a text of numbers for each field but the last, 0 for a missing one, {place, last_seen} of
-- those that may have been seen after the entry}.
local ids = redis.call('LRANGE', KEYS[1], ARGV[2], ARGV[3])
local after, last = string.match(ARGV[4], '%d+'), #ARGV - 4
local columns, late = {}, {}
for field = 1, last - 1 do columns[field] = {} end
for i, id in ipairs(ids) do
  local values = redis.call('HMGET', ARGV[1] .. id, unpack(ARGV, 5))
  for field = 1, last - 1 do columns[field][i] = values[field] or '0' end
  local seen = values[last]
  if seen and seen >= after then late[#late + 1] = {i - 1, seen} end
end
for field = 1, last - 1 do columns[field] = table.concat(columns[field], ' ') end
return cmsgpack.pack({ids, columns, late})
