#!lua
-- Makes the caller the one writer of a worker, unless another one's lease stands; then it may ask for it.
-- KEYS: meta lease wish held names aside
-- ARGV: owner, lease in ms, figure to ask with ('' asks not), how long that stands in ms
-- Gives {how many workers the writer writes, '' if untold} where another has it, else
-- {token, epoch, batch number, complete, position, books} as far as known;
-- 'complete' is 0 too where entries were evicted or deleted by hand.
local holder = redis.call('GET', KEYS[2])
local wish = redis.call('GET', KEYS[3])
local mine = wish and string.match(wish, '^%-?%d+ (.*)$') == ARGV[1]
if holder and holder ~= ARGV[1] then
  local least = wish and tonumber(string.match(wish, '^%-?%d+'))
  if ARGV[3] == '' then
    if mine then redis.call('DEL', KEYS[3]) end
  elseif mine or not least or tonumber(ARGV[3]) < least then
    redis.call('SET', KEYS[3], ARGV[3] .. ' ' .. ARGV[1], 'PX', ARGV[4])
  end
  return {redis.call('HGET', KEYS[1], 'writes') or ''}
end
if mine then redis.call('DEL', KEYS[3]) end
-- the owner's name keeps tokens apart that are counted anew in an emptied Redis
local token = redis.call('HINCRBY', KEYS[1], 'terms', 1) .. ':' .. ARGV[1]
redis.call('HSET', KEYS[1], 'token', token)
redis.call('HDEL', KEYS[1], 'writes')
redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])
local known = redis.call('HMGET', KEYS[1], 'epoch', 'n', 'complete', 'position', 'books', 'blocks', 'named', 'laid')
for at = 1, 3 do
  local count = known[5 + at]
  if count and tonumber(count) ~= redis.call('HLEN', KEYS[3 + at]) then known[3] = '0' end
end
return {token, known[1] or '', known[2] or '0', known[3] or '0', known[4] or '', known[5] or ''}
