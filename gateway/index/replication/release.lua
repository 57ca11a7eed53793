#!lua
-- The writer leaves in order: another may take over at once; with an heir, only that one for a while.
-- KEYS: meta lease wish   ARGV: token, owner, heir or '', its lease in ms
-- Gives 1, or 0 where it is not the writer (any more).
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] or redis.call('GET', KEYS[2]) ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], 'returned', '1')
if ARGV[3] == '' then
  redis.call('DEL', KEYS[2])
else
  redis.call('SET', KEYS[2], ARGV[3], 'PX', ARGV[4])
  redis.call('DEL', KEYS[3])
end
return 1
