package mcp

import (
	"context"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/session"
)

// The arguments of the tools lock and unlock.
type (
	lockInput struct {
		Paths   []string `json:"paths" jsonschema:"files, directories or globs to lock, relative to the root of the mount"`
		Reason  string   `json:"reason,omitempty" jsonschema:"text that other users see"`
		Seconds int64    `json:"ttl_seconds,omitempty" jsonschema:"duration of the lock, renewed while the session is mounted; default 3600"`
	}
	unlockInput struct {
		Paths []string `json:"paths" jsonschema:"paths or globs as they were locked, or ids of locks of this session"`
	}
)

// lockTools returns the tools for locks. No tool releases locks of other sessions.
func lockTools() []tool {
	changes := &sdk.ToolAnnotations{DestructiveHint: new(false), IdempotentHint: true, OpenWorldHint: new(false)}
	return []tool{
		of(sdk.Tool{Name: "lock", Annotations: changes,
			Description: "Keep other sessions of the same session remote from changing files: in their mounts, programs " +
				"get \"Permission denied\". Fails with the code conflict if another session has locked one of the paths. " +
				"Unlock the paths when the work on them is pushed."}, lock),
		of(sdk.Tool{Name: "unlock", Annotations: changes, Description: "Release locks of this session."}, unlock),
		of(sdk.Tool{Name: "locks", Annotations: looks(),
			Description: "List the locks of all sessions. A program that got \"Permission denied\" may have tried to " +
				"change a locked path."}, listLocks),
	}
}

func lock(ctx context.Context, w Session, in lockInput) (control.SessionLocksReply, error) {
	return askLocks(ctx, w, control.SessionLocksRequest{Op: control.LockAcquire, Patterns: in.Paths, Reason: in.Reason,
		TTL: time.Duration(in.Seconds) * time.Second})
}

func unlock(ctx context.Context, w Session, in unlockInput) (control.SessionLocksReply, error) {
	return askLocks(ctx, w, control.SessionLocksRequest{Op: control.LockRelease, Patterns: in.Paths})
}

func listLocks(ctx context.Context, w Session, _ struct{}) (control.SessionLocksReply, error) {
	return askLocks(ctx, w, control.SessionLocksRequest{Op: control.LockList})
}

// askLocks sends a request about locks, for the session w and the user of this process.
func askLocks(ctx context.Context, w Session, r control.SessionLocksRequest) (control.SessionLocksReply, error) {
	r.Of, r.Actor = w.Mount.Dir, session.Actor()
	return control.SessionLocks(ctx, w.Client, r)
}
