--- Keeps what a player carries: stacks in slots, with weight and capacity.

local json = require("json")
local events = require("engine.events")

local Inventory = {}
Inventory.__index = Inventory

local DEFAULT_SLOTS = 24
local MAX_STACK = 99

local function clamp(value, low, high)
  if value < low then
    return low
  elseif value > high then
    return high
  end
  return value
end

local function each_slot(inventory)
  local index = 0
  return function()
    index = index + 1
    while index <= inventory.capacity and inventory.slots[index] == nil do
      index = index + 1
    end
    if index <= inventory.capacity then
      return index, inventory.slots[index]
    end
  end
end

function Inventory.new(capacity)
  local self = setmetatable({}, Inventory)
  self.capacity = clamp(capacity or DEFAULT_SLOTS, 1, 200)
  self.slots = {}
  self.listeners = events.bus()
  return self
end

function Inventory:weight()
  local total = 0
  for _, stack in each_slot(self) do
    total = total + stack.item.weight * stack.count
  end
  return total
end

function Inventory:find(name)
  for index, stack in each_slot(self) do
    if stack.item.name == name then
      return index, stack
    end
  end
  return nil
end

function Inventory:add(item, count)
  count = count or 1
  local index, stack = self:find(item.name)
  if stack and stack.count + count <= MAX_STACK then
    stack.count = stack.count + count
    self.listeners:emit("changed", index, stack.count)
    return true
  end
  for free = 1, self.capacity do
    if self.slots[free] == nil then
      self.slots[free] = { item = item, count = count }
      self.listeners:emit("added", free, item.name)
      return true
    end
  end
  return false, "the inventory is full"
end

Inventory.remove = function(self, name, count)
  local index, stack = self:find(name)
  if not stack or stack.count < count then
    return false
  end
  stack.count = stack.count - count
  if stack.count == 0 then
    self.slots[index] = nil
  end
  return true
end

function Inventory.__tostring(self)
  return string.format("Inventory(%d slots, %.1f kg)", self.capacity, self:weight())
end

local serializers = {
  compact = function(inventory)
    local out = {}
    for index, stack in each_slot(inventory) do
      out[#out + 1] = { index, stack.item.name, stack.count }
    end
    return json.encode(out)
  end,
  ["human-readable"] = function(inventory)
    local lines = {}
    for _, stack in each_slot(inventory) do
      lines[#lines + 1] = stack.count .. " × " .. stack.item.name
    end
    return table.concat(lines, "\n")
  end,
}

local sort_by = function(inventory, key)
  local stacks = {}
  for _, stack in each_slot(inventory) do
    stacks[#stacks + 1] = stack
  end
  table.sort(stacks, function(left, right)
    return left.item[key] < right.item[key]
  end)
  inventory.slots = stacks
end

function serialize(inventory, style)
  local run = serializers[style or "compact"]
  assert(run, "no such style")
  return run(inventory)
end

Inventory.sort_by = sort_by

return Inventory
