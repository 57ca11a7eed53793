-- A request is over: its place is free, and the estimate of its tokens is put right.
-- KEYS as in take.lua. ARGV: request, tokens used beyond the estimate (may be negative), tokens a minute,
--       requests to give back, requests a minute.
redis.call('ZREM', KEYS[2], ARGV[1])
local back, rpm = tonumber(ARGV[4]), tonumber(ARGV[5])
local requests = redis.call('HGET', KEYS[1], 'r')
if back > 0 and rpm > 0 and requests then
  redis.call('HSET', KEYS[1], 'r', math.min(rpm, tonumber(requests) + back))
end
local more, tpm = tonumber(ARGV[2]), tonumber(ARGV[3])
local have = redis.call('HGET', KEYS[1], 't')
if tpm > 0 and have then
  local level = tonumber(have) - more
  redis.call('HSET', KEYS[1], 't', level)
  -- a debt is remembered until it is paid
  local needed = math.ceil(60 + math.max(0, -level) * 60 / tpm)
  if needed > redis.call('TTL', KEYS[1]) then redis.call('EXPIRE', KEYS[1], needed) end
end
return 1
