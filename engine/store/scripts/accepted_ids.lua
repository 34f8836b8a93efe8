-- Put before the scripts that look up and store ids (engine/store/accepted_ids.py has the layout).
-- From KEYS[key_at] on: state, prefix of the buckets; then, while there may be ids in keys of their own, the key of each id.
-- From ARGV[arg_at] on: for each id its hash and value and, where its key is given, the value as such keys have it. Ids are counted from 0.
local FIELDS_MAX = 40 -- of a bucket, beyond which there is one more; looked at with every 16th id, so exceeded by some
local BUCKETS_MAX = 16777216 -- the first three bytes of a hash choose

local ids_key_at, ids_arg_at, ids_stride, ids_count, ids_state_key, ids_prefix, ids_ttl_ms, ids_now_s, ids_stamp
local ids_buckets, ids_low, ids_high -- buckets: nil while ids get keys of their own

-- Linear hashing (Litwin 1980): of `high` places, a power of two, those from `buckets` on are still one with the place `low` below.
local function ids_sized(buckets)
  ids_buckets, ids_high = buckets, 2
  while ids_high < buckets do
    ids_high = ids_high * 2
  end
  ids_low = ids_high / 2
end

-- Look how many buckets there are; when that is not said, there is one, unless ids may have keys of their own.
local function ids_open_buckets(state_key, prefix, ttl_ms, own_keys)
  ids_state_key, ids_prefix, ids_ttl_ms = state_key, prefix, ttl_ms
  local buckets = redis.call('HGET', state_key, 'buckets')
  if buckets or not own_keys then
    ids_sized(tonumber(buckets or '1'))
  end
  ids_now_s = tonumber(redis.call('TIME')[1])
  local rest = math.floor(ids_now_s / 256)
  ids_stamp = string.char(math.floor(rest / 65536) % 256, math.floor(rest / 256) % 256, rest % 256, ids_now_s % 256)
end

local function ids_open(key_at, arg_at, ttl_ms)
  ids_key_at, ids_arg_at = key_at, arg_at
  ids_stride = #KEYS > key_at + 1 and 3 or 2
  ids_count = (#ARGV - arg_at + 1) / ids_stride
  if ids_count > 0 then
    ids_open_buckets(KEYS[key_at], KEYS[key_at + 1], ttl_ms, ids_stride == 3)
  end
end

local function ids_bucket(hash)
  local a, b, c = string.byte(hash, 1, 3)
  local at = a * 65536 + b * 256 + c
  local bucket = at % ids_high
  if bucket >= ids_buckets then
    bucket = at % ids_low
  end
  return ids_prefix .. bucket
end

local function ids_live(value)
  local a, b, c, d = string.byte(value, 1, 4)
  return ((a * 256 + b) * 256 + c) * 256 + d + math.ceil(ids_ttl_ms / 1000) >= ids_now_s
end

-- The value of an id with its stamp, or nil; and the one of its own key, or nil.
local function ids_find(id)
  local hash = ARGV[ids_arg_at + ids_stride * id]
  local value = ids_buckets and redis.call('HGET', ids_bucket(hash), hash)
  if value and ids_live(value) then
    return value, nil
  end
  return nil, ids_stride == 3 and redis.call('GET', KEYS[ids_key_at + 2 + id]) or nil
end

-- What is known of all ids: {index, value with its stamp, ...}, {index, value of its own key, ...}.
local function ids_known()
  local stamped, own = {}, {}
  for id = 0, ids_count - 1 do
    local value, other = ids_find(id)
    if value then
      stamped[#stamped + 1] = id
      stamped[#stamped + 1] = value
    elseif other then
      own[#own + 1] = id
      own[#own + 1] = other
    end
  end
  return stamped, own
end

local function ids_drop(id)
  local hash = ARGV[ids_arg_at + ids_stride * id]
  if ids_buckets then
    redis.call('HDEL', ids_bucket(hash), hash)
  end
  if ids_stride == 3 then
    redis.call('DEL', KEYS[ids_key_at + 2 + id])
  end
end

local function ids_drop_all(stored)
  for i = 1, #stored do
    ids_drop(stored[i])
  end
end

-- Store each id that is not known. Returns what is known of the others as `ids_known` does, then those that are stored now; when
-- Redis rejects writes, its error in place of these: nothing is stored then.
local function ids_store_all()
  local stamped, own, stored = {}, {}, {}
  for id = 0, ids_count - 1 do
    local at = ids_arg_at + ids_stride * id
    local hash, reply = ARGV[at], nil
    local other = ids_stride == 3 and redis.call('GET', KEYS[ids_key_at + 2 + id])
    if other then
      own[#own + 1] = id
      own[#own + 1] = other
    elseif not ids_buckets then
      reply = redis.pcall('SET', KEYS[ids_key_at + 2 + id], ARGV[at + 2], 'PX', ids_ttl_ms)
    else
      local bucket, value = ids_bucket(hash), ids_stamp .. ARGV[at + 1]
      reply = redis.pcall('HSETNX', bucket, hash, value)
      if reply == 0 then
        local found = redis.call('HGET', bucket, hash)
        if ids_live(found) then
          stamped[#stamped + 1] = id
          stamped[#stamped + 1] = found
          reply = nil
        else
          reply = redis.pcall('HSET', bucket, hash, value)
        end
      end
    end
    if reply then
      if type(reply) == 'table' and reply.err then -- at the first write, or never
        stamped, own = ids_known()
        return stamped, own, nil, reply
      end
      stored[#stored + 1] = id
    end
  end
  return stamped, own, stored
end

-- Add a bucket, which takes its part from the one it has been one with.
local function ids_split()
  local number = ids_buckets
  ids_sized(number + 1)
  local from, to = ids_prefix .. (number - ids_low), ids_prefix .. number
  local fields, moved, gone = redis.call('HGETALL', from), {}, {}
  for i = 1, #fields, 2 do
    if ids_bucket(fields[i]) == to then
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
  for i = 1, ids_buckets and #stored or 0 do
    ids_grow_at(ARGV[ids_arg_at + ids_stride * stored[i]])
  end
end
