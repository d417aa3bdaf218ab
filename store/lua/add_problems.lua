#!lua
-- Add problems, each once; all of this call or, when one differs from what is stored, none.
-- KEYS: problems (or held_out), then each problem   ARGV: per problem: id, prompt, verifier, answer, tags, limits
-- Returns {how many were new}, or {-1, id, field} of the first that differs.
local fields = {'prompt', 'verifier', 'answer', 'tags', 'limits'}
local fresh = {}
for i = 2, #KEYS do
  local at = 6 * (i - 2)
  local stored = redis.call('HMGET', KEYS[i], unpack(fields))
  if not stored[1] then
    fresh[#fresh + 1] = i
  else
    for j, field in ipairs(fields) do
      if (stored[j] or '{}') ~= ARGV[at + 1 + j] then return {-1, ARGV[at + 1], field} end
    end
  end
end
local added = 0
for _, i in ipairs(fresh) do
  local at = 6 * (i - 2)
  if redis.call('HSETNX', KEYS[i], 'prompt', ARGV[at + 2]) == 1 then
    redis.call('HSET', KEYS[i], 'verifier', ARGV[at + 3], 'answer', ARGV[at + 4], 'tags', ARGV[at + 5],
      'limits', ARGV[at + 6])
    redis.call('RPUSH', KEYS[1], ARGV[at + 1])
    added = added + 1
  end
end
return {added}
