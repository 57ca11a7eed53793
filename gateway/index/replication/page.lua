#!lua flags=no-writes
-- A page of what a worker holds, as the records that its stream has too: key 8, key before it 8, copies 4, each.
-- KEYS: held   ARGV: cursor, about how many   Gives {the next cursor, records}.
local page = redis.call('HSCAN', KEYS[1], ARGV[1], 'COUNT', ARGV[2])
return {page[1], table.concat(page[2])}
