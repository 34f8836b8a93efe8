-- Move the position of a group of consumers forward, and give the group to a consumer unless another one has it. For any caller.
-- KEYS: the tenant's groups, a hash
-- ARGV: group, consumer, ms for which it has the group (0: it leaves), groups at most, how many streams there are,
--       the data epoch, that of the position that was reached ('' for none),
--       then for each stream the position that was reached ('' for none), then for each the position at which a new group begins
-- Returns {'OK', consumer that has the group now ('' for none), position in each stream...}, or {'FULL'};
--       'ANEW' in place of 'OK': these positions are what there is of the group after a loss of data, and nothing was reached in this epoch.
-- Of a group the hash has `<group> at <n>`, its position in stream n that it was ever asked for, `<group> of`, the data epoch of these,
-- '?' after a loss until a position of this epoch is reached, and `<group> by`, `<until, ms> <consumer>`.
-- A position is the id of an entry, `-` and how many items of that entry were handled: all of them where that is left out.
local group, consumer, lease_ms, groups_max, streams = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])

local function after(one, other)
  local ms, number, part = string.match(one, '(%d+)-(%d+)%-?(%d*)')
  local other_ms, other_number, other_part = string.match(other, '(%d+)-(%d+)%-?(%d*)')
  ms, number, other_ms, other_number = tonumber(ms), tonumber(number), tonumber(other_ms), tonumber(other_number)
  if ms ~= other_ms then return ms > other_ms end
  if number ~= other_number then return number > other_number end
  return (tonumber(part) or math.huge) > (tonumber(other_part) or math.huge)
end

if redis.call('HEXISTS', KEYS[1], group .. ' at 1') == 0 then
  local groups = 0
  for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
    if string.sub(field, -5) == ' at 1' then groups = groups + 1 end
  end
  if groups >= groups_max then return {'FULL'} end
end
local epoch, reached_epoch = ARGV[6], ARGV[7]
local stored_epoch = redis.call('HGET', KEYS[1], group .. ' of') or epoch
local lost = reached_epoch ~= epoch and (reached_epoch ~= '' or stored_epoch ~= epoch)
redis.call('HSET', KEYS[1], group .. ' of', lost and '?' or epoch)
local reply = {lost and 'ANEW' or 'OK', ''}
for i = 1, streams do
  local field = group .. ' at ' .. i
  local reached = not lost and ARGV[7 + i] or ''
  local begin = lost and '0-0' or reached ~= '' and reached or ARGV[7 + streams + i]
  local stored = redis.call('HGET', KEYS[1], field) or begin
  if reached ~= '' and after(reached, stored) then
    stored = reached
  end
  redis.call('HSET', KEYS[1], field, stored)
  reply[2 + i] = stored
end
local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local until_ms, holder = string.match(redis.call('HGET', KEYS[1], group .. ' by') or '', '^(%d+) (.*)$')
if not holder or holder == consumer or tonumber(until_ms) <= now_ms then
  holder = lease_ms > 0 and consumer or ''
  redis.call('HSET', KEYS[1], group .. ' by', string.format('%d %s', now_ms + lease_ms, holder))
end
reply[2] = holder
return reply
