#!lua flags=allow-oom
-- Act on a lock only where the caller holds it.
-- KEYS: learner or evaluating   ARGV: token, ttl in ms (0: release)
-- Returns 1, or 0 when another holds it or nobody does.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
if ARGV[2] == '0' then return redis.call('DEL', KEYS[1]) end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
