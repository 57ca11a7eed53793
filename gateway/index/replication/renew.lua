#!lua
-- The writer is alive: its lease is renewed, and what it wrote is kept for another while.
-- KEYS: meta lease wish held names aside changes
-- ARGV: token, owner, lease in ms, retention in ms, how many workers it writes
-- Gives {'ok', who asks for the worker ('FIGURE OWNER') or ''}, {'fenced'}, {'voided'} or {'lost'}.
local token = redis.call('HGET', KEYS[1], 'token')
if not token then return {'lost'} end
if token ~= ARGV[1] and string.match(token, ':void$') then return {'voided'} end
local holder = redis.call('GET', KEYS[2])
if token ~= ARGV[1] or (holder and holder ~= ARGV[2]) then return {'fenced'} end
local known = redis.call('HMGET', KEYS[1], 'blocks', 'named', 'laid')
for at = 1, 3 do
  -- evicted, or deleted by hand
  if known[at] and tonumber(known[at]) ~= redis.call('HLEN', KEYS[at + 3]) then return {'lost'} end
end
redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3])
redis.call('HSET', KEYS[1], 'writes', ARGV[5])
for at = 1, #KEYS do
  if at ~= 2 and at ~= 3 then redis.call('PEXPIRE', KEYS[at], ARGV[4]) end
end
return {'ok', redis.call('GET', KEYS[3]) or ''}
