#!lua flags=no-writes
-- Where a worker's history stands, and the place in its stream that belongs to it, as one reading.
-- KEYS: meta changes   Gives {} where nothing is known, else {stream id, epoch, batch number, token that wrote it, complete}.
local known = redis.call('HMGET', KEYS[1], 'epoch', 'n', 'by', 'complete')
if not known[1] then return {} end
local last = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)
return {last[1] and last[1][1] or '0-0', known[1], known[2], known[3] or '', known[4]}
