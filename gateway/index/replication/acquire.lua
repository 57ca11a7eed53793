#!lua
-- Makes the caller the one writer of a worker, unless another one's lease stands.
-- KEYS: meta lease   ARGV: owner, lease in ms
-- Gives {} where another has it, else {token, epoch, batch number, complete, position, books} as far as known.
local holder = redis.call('GET', KEYS[2])
if holder and holder ~= ARGV[1] then return {} end
-- the owner's name keeps tokens apart that are counted anew in an emptied Redis
local token = redis.call('HINCRBY', KEYS[1], 'terms', 1) .. ':' .. ARGV[1]
redis.call('HSET', KEYS[1], 'token', token)
redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])
local known = redis.call('HMGET', KEYS[1], 'epoch', 'n', 'complete', 'position', 'books')
return {token, known[1] or '', known[2] or '0', known[3] or '0', known[4] or '', known[5] or ''}
