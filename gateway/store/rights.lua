#!lua
-- Which of the commands that are used here this user may not run, or not with this fleet's keys and channels.
-- KEYS: a key that is nobody's. ARGV: a channel that nobody listens to.
-- The key is a string: what is for other types is refused for that, once the user's rights were looked at.
-- Gives a list of command, the server's reason, command, …
local key = KEYS[1]
local tries = {
  {'SET', key, '', 'PX', 1000}, {'GET', key}, {'EXISTS', key}, {'EXPIRE', key, 1}, {'PEXPIRE', key, 1000}, {'TTL', key},
  {'PTTL', key}, {'TIME'}, {'PUBLISH', ARGV[1], ''},
  {'HGET', key, 'f'}, {'HMGET', key, 'f'}, {'HSET', key, 'f', ''}, {'HDEL', key, 'f'}, {'HLEN', key},
  {'HINCRBY', key, 'f', 1}, {'HSCAN', key, 0},
  {'ZADD', key, 1, 'm'}, {'ZCARD', key}, {'ZRANGE', key, 0, -1}, {'ZREM', key, 'm'},
  {'ZREMRANGEBYRANK', key, 0, 0}, {'ZREMRANGEBYSCORE', key, 0, 0},
  {'XADD', key, '*', 'f', ''}, {'XREAD', 'STREAMS', key, '0'}, {'XREVRANGE', key, '+', '-', 'COUNT', 1},
  {'UNLINK', key}, {'DEL', key},
}
local refused = {}
for _, try in ipairs(tries) do
  local answer = redis.pcall(unpack(try))
  local reason = type(answer) == 'table' and answer.err
  if reason and (string.find(reason, 'ACL failure', 1, true) or string.find(reason, 'NOPERM', 1, true)) then
    refused[#refused + 1] = try[1]
    refused[#refused + 1] = reason
  end
end
return refused
