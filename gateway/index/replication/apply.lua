#!lua
-- One batch of changes to what a worker holds: whole or not at all.
-- KEYS: meta held names aside changes
-- ARGV: token, epoch, batch number, new epoch ('' to go on), complete (1 or 0), position, books, stream length,
--       deltas (key 8, key before it 8, copies more or less 4, each), then four lists with their lengths before
--       them: names to set (pairs), names to delete, aside to set (pairs), aside to delete
-- Gives 'ok', 'fenced' (another writes), 'voided' (somebody had all of it forgotten) or 'lost' (Redis does not have what this batch builds on: batches are missing,
-- or entries, evicted or deleted by hand).
local meta, held, names, aside, changes = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local token, epoch, number, new_epoch = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local complete, position, books, length, deltas = ARGV[5], ARGV[6], ARGV[7], ARGV[8], ARGV[9]

local known = redis.call('HMGET', meta, 'token', 'epoch', 'n', 'blocks', 'named', 'laid')
if not known[1] then return 'lost' end
if known[1] ~= token then return string.match(known[1], ':void$') and 'voided' or 'fenced' end

local target = epoch
if new_epoch ~= '' then target = new_epoch end
-- its answer got lost on the way, and it was sent again
if known[2] == target and known[3] == number then return 'ok' end
if new_epoch ~= '' then
  redis.call('UNLINK', held, names, aside)
elseif known[2] ~= epoch or tonumber(known[3]) ~= tonumber(number) - 1 then
  return 'lost'
else
  -- before anything is counted anew: what was taken away would not be missed any more
  for at = 1, 3 do
    local count = known[3 + at]
    if count and tonumber(count) ~= redis.call('HLEN', KEYS[1 + at]) then return 'lost' end
  end
end

-- a block that went and came back between two batches has its record too, though its count stays
local ROOT = string.rep('\0', 8)
local records = {}
for at = 1, #deltas, 20 do
  local key, parent = string.sub(deltas, at, at + 7), string.sub(deltas, at + 8, at + 15)
  local count = struct.unpack('<i4', deltas, at + 16)
  local old = redis.call('HGET', held, key)
  if old then
    count = count + struct.unpack('<I4', old, 9)
    if string.sub(old, 1, 8) ~= ROOT then parent = string.sub(old, 1, 8) end
  end
  if count > 0 then
    local value = parent .. struct.pack('<I4', count)
    redis.call('HSET', held, key, value)
    records[#records + 1] = key .. value
  elseif old then
    redis.call('HDEL', held, key)
    records[#records + 1] = key .. parent .. struct.pack('<I4', 0)
  end
end

-- a call takes only so many arguments from Lua's stack
local at = 10
local function each(command, hash)
  local count = tonumber(ARGV[at])
  local last = at + count
  at = at + 1
  while at <= last do
    local to = math.min(at + 1999, last)
    redis.call(command, hash, unpack(ARGV, at, to))
    at = to + 1
  end
end
each('HSET', names)
each('HDEL', names)
each('HSET', aside)
each('HDEL', aside)

-- what is found less than this later was taken away by somebody else
redis.call('HSET', meta, 'blocks', redis.call('HLEN', held), 'named', redis.call('HLEN', names),
  'laid', redis.call('HLEN', aside))
redis.call('HSET', meta, 'epoch', target, 'n', number, 'by', token,
  'complete', complete, 'position', position, 'books', books)
redis.call('XADD', changes, 'MAXLEN', '~', length, '*',
  'e', target, 'n', number, 't', token, 'r', new_epoch == '' and '0' or '1', 'c', complete,
  'p', table.concat(records))
return 'ok'
