#!lua
-- Makes the caller the one writer of a worker, unless another one's lease stands; then it may ask for it.
-- KEYS: meta lease wish held names aside
-- ARGV: owner, lease in ms, figure to ask with ('' asks not), how long that stands in ms,
--       how it asks: '' (any lease that does not stand), 'returned' (only one that was given back: what is missing may
--       have vanished, and its writer comes first), 'mine' (only the lease that is the caller's already, whose answer
--       it may never have got) or 'richer' (only from a writer whose books are not the caller's, grown further, and
--       fewer),
--       origin of the caller's own books ('' without), how many blocks they name
-- Gives {how many workers the writer writes, '' if untold; ms that its lease has left, 0 if it is missing} where the
-- caller may not write, else {token, epoch, batch number, complete, position, books, origin of the books} as far as
-- known; 'complete' is 0 too where entries were evicted or deleted by hand.
local holder = redis.call('GET', KEYS[2])
local wish = redis.call('GET', KEYS[3])
local mine = wish and string.match(wish, '^%-?%d+ (.*)$') == ARGV[1]
local by = redis.call('HMGET', KEYS[1], 'origin', 'named', 'worth', 'returned', 'by')
if ARGV[5] == 'richer' then
  local most = math.max(tonumber(by[2] or 0), tonumber(by[3] or 0))
  if not by[1] or by[1] == ARGV[6] or tonumber(ARGV[7]) <= most then return {'', 0} end
elseif ARGV[5] == 'mine' then
  if holder ~= ARGV[1] then return {'', 0} end
elseif holder and holder ~= ARGV[1] then
  local least = wish and tonumber(string.match(wish, '^%-?%d+'))
  if ARGV[3] == '' then
    if mine then redis.call('DEL', KEYS[3]) end
  elseif mine or not least or tonumber(ARGV[3]) < least then
    redis.call('SET', KEYS[3], ARGV[3] .. ' ' .. ARGV[1], 'PX', ARGV[4])
  end
  return {redis.call('HGET', KEYS[1], 'writes') or '', redis.call('PTTL', KEYS[2])}
elseif not holder and ARGV[5] == 'returned' and not by[4] then
  return {'', 0}
end
if mine then redis.call('DEL', KEYS[3]) end
-- the owner's name keeps tokens apart that are counted anew in an emptied Redis
local token = redis.call('HINCRBY', KEYS[1], 'terms', 1) .. ':' .. ARGV[1]
redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])
local known = redis.call('HMGET', KEYS[1], 'epoch', 'n', 'complete', 'position', 'books', 'blocks', 'named', 'laid')
for at = 1, 3 do
  local count = known[5 + at]
  if count and tonumber(count) ~= redis.call('HLEN', KEYS[3 + at]) then known[3] = '0' end
end
-- who finds books goes on with them, who finds none (lost, half written) begins others; what was voided is nobody's
local voided = by[5] and string.match(by[5], ':void$')
local origin = ARGV[6]
if origin == '' then
  -- the time, too: in an emptied Redis the same owner may get the same token again
  origin = (known[3] == '1' or voided) and by[1] or token .. ':' .. table.concat(redis.call('TIME'), '.')
  redis.call('HDEL', KEYS[1], 'worth')
else
  redis.call('HSET', KEYS[1], 'worth', ARGV[7])
end
redis.call('HSET', KEYS[1], 'token', token, 'origin', origin)
redis.call('HDEL', KEYS[1], 'writes', 'returned')
return {token, known[1] or '', known[2] or '0', known[3] or '0', known[4] or '', known[5] or '', origin}
