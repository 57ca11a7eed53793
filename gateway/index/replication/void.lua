#!lua
-- Forgets all that is known of a worker, and fences off its writer, which then begins anew.
-- KEYS: meta held names aside changes   ARGV: new epoch, stream length
-- Gives 1, or 0 where nothing was known.
local epoch = redis.call('HGET', KEYS[1], 'epoch')
if not epoch then return 0 end
redis.call('UNLINK', KEYS[2], KEYS[3], KEYS[4])
local token = redis.call('HINCRBY', KEYS[1], 'terms', 1) .. ':void'
redis.call('HSET', KEYS[1], 'token', token, 'by', token, 'epoch', ARGV[1], 'n', '0',
  'complete', '0', 'position', '', 'books', '', 'blocks', '0', 'named', '0', 'laid', '0')
redis.call('XADD', KEYS[5], 'MAXLEN', '~', ARGV[2], '*', 'e', ARGV[1], 'n', '0', 't', token, 'r', '1',
  'c', '0', 'p', '')
return 1
