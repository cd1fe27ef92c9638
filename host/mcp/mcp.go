// Package mcp serves the commands for one session as tools of the Model Context Protocol (MCP), so that a coding agent
// can make checkpoints of its own work, list them and restore them.
//
// A server offers few tools, unless the user chooses more (Tools), because an agent reads the schemas of all tools in
// each conversation. A tool returns, as structured content, the output that the command of the same name prints with
// --json; log and status return the part that an agent needs. A failure is a tool error whose structured content is a
// control.ErrorReport. The session is looked up at every call, because its mount may be unmounted and mounted again
// while the agent runs.
package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"io"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/artifactfs/artifactfs/control"
)

// Session is a mounted session, and the daemon that serves it.
type Session struct {
	Client *control.Client
	Mount  control.MountStatus
}

// Find returns the session on which the tools operate. verb names the operation in the text of errors.
type Find func(ctx context.Context, verb string) (Session, error)

// instructions is the text about the tools that an agent receives when it connects.
const instructions = `These tools work in an artifactfs session: a mounted git working tree whose states are saved as checkpoints.
Create a checkpoint before a risky change. A checkpoint contains all files, also untracked ones, with git's index, HEAD, branches
and stashes; creating a checkpoint changes nothing in git. A checkpoint is named by its ID, a prefix of the ID, a pin, or its distance
from the newest: @ is the newest, @~1 the one before. restore first creates a checkpoint of the current state, so it can be undone.`

// Options are the session of a server, and its tools.
type Options struct {
	Find  Find
	Tools Tools
}

// Serve reads requests from in and writes replies to out. It returns nil when in ends, and the error of ctx when ctx
// ends.
func Serve(ctx context.Context, version string, o Options, in io.ReadCloser, out io.WriteCloser) error {
	server := sdk.NewServer(&sdk.Implementation{Name: "artifactfs", Title: "artifactfs session", Version: version},
		&sdk.ServerOptions{Instructions: instructions, Capabilities: &sdk.ServerCapabilities{}})
	server.AddReceivingMiddleware(reportErrors, o.Tools.onlyOffered)
	o.Tools.addTo(server, o.Find)
	err := server.Run(ctx, &sdk.IOTransport{Reader: in, Writer: out})
	if ctx.Err() != nil {
		// After ctx has ended, Run reports the closed connection, which is not the cause.
		return ctx.Err()
	}
	return err
}

// reportErrors is a middleware that adds the error code and the hint to the result of a failed call, which would
// otherwise contain only a text.
func reportErrors(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, r sdk.Request) (sdk.Result, error) {
		result, err := next(ctx, method, r)
		call, ok := result.(*sdk.CallToolResult)
		if err != nil || !ok || call.GetError() == nil {
			return result, err
		}
		// Clients that do not know structured content read the same JSON as text.
		report := asError(call.GetError()).Report()
		text, err := json.Marshal(report)
		if err != nil {
			return nil, err
		}
		call.StructuredContent = json.RawMessage(text)
		call.Content = []sdk.Content{&sdk.TextContent{Text: string(text)}}
		return call, nil
	}
}

// asError returns the *control.Error that err wraps, which comes from a tool. Any other error means that the arguments
// of the call are invalid, and is converted.
func asError(err error) *control.Error {
	var e *control.Error
	if errors.As(err, &e) {
		return e
	}
	return &control.Error{Code: control.ExitUsage, Kind: control.CodeUsage, Cause: err.Error()}
}
