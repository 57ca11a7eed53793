-- One request of an API key, admitted or refused; a refusal takes nothing.
-- KEYS: hash of the buckets' levels and their times (r, rt: requests; t, tt: tokens),
--       sorted set of open requests, scored with the time at which they count as gone.
-- ARGV: request, estimated tokens, requests a minute, tokens a minute, parallel (0: no limit), life in seconds.
-- Returns {refusal, seconds to wait}; refusal is '' where it was admitted.
local clock = redis.call('TIME')
local now = tonumber(clock[1]) + tonumber(clock[2]) / 1000000
local tokens, rpm, tpm = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local parallel, life = tonumber(ARGV[5]), tonumber(ARGV[6])

local function level(name, time, rate)
  local have = redis.call('HMGET', KEYS[1], name, time)
  if not have[1] then return rate end
  return math.min(rate, tonumber(have[1]) + math.max(0, now - tonumber(have[2])) * rate / 60)
end

local function wait_for(amount, have, rate)
  return string.format('%.3f', (amount - have) * 60 / rate)
end

if parallel > 0 then
  redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
  if redis.call('ZCARD', KEYS[2]) >= parallel then return {'parallel', '1'} end
end
local requests, filled = rpm, tpm
if rpm > 0 then
  requests = level('r', 'rt', rpm)
  if requests < 1 then return {'requests', wait_for(1, requests, rpm)} end
end
if tpm > 0 then
  filled = level('t', 'tt', tpm)
  local wanted = math.min(tokens, tpm)
  if filled < wanted then return {'tokens', wait_for(wanted, filled, tpm)} end
end

if rpm > 0 then redis.call('HSET', KEYS[1], 'r', requests - 1, 'rt', now) end
if tpm > 0 then redis.call('HSET', KEYS[1], 't', filled - tokens, 'tt', now) end
if parallel > 0 then
  redis.call('ZADD', KEYS[2], now + life, ARGV[1])
  redis.call('EXPIRE', KEYS[2], math.ceil(life))
end
-- a bucket that is full again is as good as none
if rpm > 0 or tpm > 0 then redis.call('EXPIRE', KEYS[1], math.ceil(life + 60)) end
return {'', '0'}
