#!lua
-- Publish a manifest, once; versions only rise.
-- KEYS: weights, weights:log   ARGV: version, path, sha256, bytes, step, time_s, format, base
-- Returns {} or {version, sha256} of the manifest that is in the way.
local id = ARGV[1] .. '-1'
local fields = {'version', ARGV[1], 'path', ARGV[2], 'sha256', ARGV[3], 'bytes', ARGV[4], 'step', ARGV[5],
  'time_s', ARGV[6], 'format', ARGV[7], 'base', ARGV[8]}
local current = redis.call('HMGET', KEYS[1], 'version', 'sha256')
if current[1] and tonumber(current[1]) >= tonumber(ARGV[1]) then
  local same = redis.call('XRANGE', KEYS[2], id, id)[1]
  if same and same[2][6] == ARGV[3] then return {} end
  return {current[1], current[2]}
end
redis.call('XADD', KEYS[2], id, unpack(fields))
redis.call('HSET', KEYS[1], unpack(fields))
return {}
