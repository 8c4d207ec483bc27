-- Asks a model in this directory and prints its answer as it comes: nvim -l ask.lua 'What is in this directory?'
-- Neovim's own client for language servers, unchanged: Content-Length framing over the socket.
local directory = vim.env.XDG_RUNTIME_DIR or vim.fs.joinpath(vim.env.HOME, '.local/state')
local path = vim.env.KLI_SOCKET or vim.fs.joinpath(directory, 'kli/kli.sock')
local ended

local client = vim.lsp.rpc.connect(path)({
  notification = function(method, params)
    local event = params.result
    if method ~= 'sessionEvent' then
      return
    elseif event.type == 'textDelta' then
      io.stdout:write(event.delta)
      io.stdout:flush()
    elseif event.type == 'runEnd' then
      ended = event.stopReason
    end
  end,
  on_exit = function()
    ended = ended or 'a closed connection'
  end,
  on_error = function(_, ...)
    ended = vim.inspect({ ... })
  end,
})

--- Calls a method; `follow` gets its result.
local function call(method, params, follow)
  client.request(method, params, function(err, result)
    if err then
      ended = err.message
    elseif follow then
      follow(result)
    end
  end)
end

call('createSession', { workDir = vim.uv.cwd() }, function(session)
  local id = session.sessionId
  -- Subscribed before the prompt is sent, so that nothing of the answer is missed.
  call('subscribe', { sessionId = id })
  -- Nobody is here to be asked: calls that need a person are refused, and the answer says so.
  call('prompt', { sessionId = id, text = arg[1], approvals = 'deny' })
end)

vim.wait(10 * 60 * 1000, function()
  return ended ~= nil
end, 10)
client.terminate()
io.stdout:write('\n')
if ended ~= 'done' then
  io.stderr:write(('the run ended with %s\n'):format(ended or 'nothing in ten minutes'))
  os.exit(1)
end
