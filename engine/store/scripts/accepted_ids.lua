-- Put before the scripts that look up and store ids (engine/store/accepted_ids.py has the layout).
-- From KEYS[key_at] on: state, prefix of the buckets. From ARGV[arg_at] on: hash and value of each id. Ids are counted from 0.
local FIELDS_MAX = 40 -- of a bucket, beyond which there is one more; looked at with every 16th id, so exceeded by some
local BUCKETS_MAX = 16777216 -- the first three bytes of a hash choose

local ids_arg_at, ids_count, ids_state_key, ids_prefix, ids_ttl_ms, ids_now_s, ids_stamp
local ids_buckets, ids_low, ids_high

-- Linear hashing (Litwin 1980): of `high` places, a power of two, those from `buckets` on are still one with the place `low` below.
local function ids_sized(buckets)
  ids_buckets, ids_high = buckets, 2
  while ids_high < buckets do
    ids_high = ids_high * 2
  end
  ids_low = ids_high / 2
end

local function ids_stamp_of(second)
  local rest = math.floor(second / 256)
  return string.char(math.floor(rest / 65536) % 256, math.floor(rest / 256) % 256, rest % 256, second % 256)
end

-- Look how many buckets there are; new data have one.
local function ids_open_buckets(state_key, prefix, ttl_ms)
  ids_state_key, ids_prefix, ids_ttl_ms = state_key, prefix, ttl_ms
  ids_sized(tonumber(redis.call('HGET', state_key, 'buckets') or '1'))
  ids_now_s = tonumber(redis.call('TIME')[1])
  ids_stamp = ids_stamp_of(ids_now_s)
end

local function ids_open(key_at, arg_at, ttl_ms)
  ids_arg_at, ids_count = arg_at, (#ARGV - arg_at + 1) / 2
  if ids_count > 0 then
    ids_open_buckets(KEYS[key_at], KEYS[key_at + 1], ttl_ms)
  end
end

-- The number of a hash's bucket.
local function ids_place(hash)
  local a, b, c = string.byte(hash, 1, 3)
  local at = a * 65536 + b * 256 + c
  local place = at % ids_high
  return place < ids_buckets and place or at % ids_low
end

local function ids_bucket(hash)
  return ids_prefix .. ids_place(hash)
end

local function ids_live(value)
  local a, b, c, d = string.byte(value, 1, 4)
  return ((a * 256 + b) * 256 + c) * 256 + d + math.ceil(ids_ttl_ms / 1000) >= ids_now_s
end

-- What is known of all ids: {index, value with its stamp, ...}.
local function ids_known()
  local known = {}
  for id = 0, ids_count - 1 do
    local hash = ARGV[ids_arg_at + 2 * id]
    local value = redis.call('HGET', ids_bucket(hash), hash)
    if value and ids_live(value) then
      known[#known + 1] = id
      known[#known + 1] = value
    end
  end
  return known
end

local function ids_drop(id)
  local hash = ARGV[ids_arg_at + 2 * id]
  redis.call('HDEL', ids_bucket(hash), hash)
end

local function ids_drop_all(stored)
  for i = 1, #stored do
    ids_drop(stored[i])
  end
end

-- Store each id that is not known. Returns what is known of the others as `ids_known` does, then those that are stored now; when
-- Redis rejects writes, its error in place of these: nothing is stored then.
local function ids_store_all()
  local known, stored = {}, {}
  for id = 0, ids_count - 1 do
    local at = ids_arg_at + 2 * id
    local hash = ARGV[at]
    local bucket, value = ids_bucket(hash), ids_stamp .. ARGV[at + 1]
    local reply = redis.pcall('HSETNX', bucket, hash, value)
    if reply == 0 then
      local found = redis.call('HGET', bucket, hash)
      if ids_live(found) then
        known[#known + 1] = id
        known[#known + 1] = found
        reply = nil
      else
        reply = redis.pcall('HSET', bucket, hash, value)
      end
    end
    if reply then
      if type(reply) == 'table' and reply.err then -- at the first write, or never
        return ids_known(), nil, reply
      end
      stored[#stored + 1] = id
    end
  end
  return known, stored
end

-- Add a bucket, which takes its part from the one it has been one with.
local function ids_split()
  local number = ids_buckets
  ids_sized(number + 1)
  local from, to = ids_prefix .. (number - ids_low), ids_prefix .. number
  local fields, moved, gone = redis.call('HGETALL', from), {}, {}
  for i = 1, #fields, 2 do
    if ids_place(fields[i]) == number then
      gone[#gone + 1] = fields[i]
      moved[#moved + 1] = fields[i]
      moved[#moved + 1] = fields[i + 1]
    end
  end
  if #gone > 0 then
    redis.call('HSET', to, unpack(moved))
    redis.call('HDEL', from, unpack(gone))
  end
  redis.call('HSET', ids_state_key, 'buckets', ids_buckets)
end

-- Add a bucket where that of this id, which was stored, has become too large.
local function ids_grow_at(hash)
  if string.byte(hash, 4) < 16 and ids_buckets < BUCKETS_MAX and redis.call('HLEN', ids_bucket(hash)) > FIELDS_MAX then
    ids_split()
  end
end

local function ids_grow(stored)
  for i = 1, #stored do
    ids_grow_at(ARGV[ids_arg_at + 2 * stored[i]])
  end
end
