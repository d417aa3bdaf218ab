#!lua flags=allow-oom
-- Keep, beside groups, the log-probs of their completions under a frozen reference model; a group takes them along when
-- it leaves, and one that has left is passed over.
-- KEYS: groups   ARGV: the bytes for each
-- Returns how many groups were there.
local kept = 0
for i = 1, #KEYS do
  if redis.call('EXISTS', KEYS[i]) == 1 then
    redis.call('HSET', KEYS[i], 'reference', ARGV[i])
    kept = kept + 1
  end
end
return kept
