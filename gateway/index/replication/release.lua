#!lua
-- The writer leaves in order: another may take over at once.
-- KEYS: meta lease   ARGV: token, owner
if redis.call('HGET', KEYS[1], 'token') == ARGV[1] and redis.call('GET', KEYS[2]) == ARGV[2] then
  redis.call('DEL', KEYS[2])
  return 1
end
return 0
