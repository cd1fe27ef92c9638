package mcp

import (
	"cmp"
	"context"
	"fmt"
	"time"
	"unicode/utf8"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/control/profile"
	"github.com/artifactfs/artifactfs/session"
)

// Limits of the results of the default tools. The arguments of log may state another limit.
const (
	defaultLog = 20        // number of checkpoints
	maxPatch   = 256 << 10 // maximum length of a patch in bytes
)

// The arguments of the default tools. The SDK derives the schema that agents see from the tags of the fields.
type (
	checkpointInput struct {
		Message string `json:"message,omitempty" jsonschema:"text that describes the checkpoint"`
		Pin     string `json:"pin,omitempty" jsonschema:"name of a pin; letters, digits, dots, dashes and underscores"`
		Sync    bool   `json:"sync,omitempty" jsonschema:"return when the checkpoint is on the session remote"`
	}
	logInput struct {
		Limit int `json:"limit,omitempty" jsonschema:"maximum number of checkpoints to list; default 20"`
	}
	diffInput struct {
		From  string `json:"from,omitempty" jsonschema:"checkpoint to compare from; default: the start of the session"`
		To    string `json:"to,omitempty" jsonschema:"checkpoint to compare with; default: the working tree"`
		Patch bool   `json:"patch,omitempty" jsonschema:"also return the patch, as git diff prints it"`
	}
	restoreInput struct {
		Checkpoint string   `json:"checkpoint" jsonschema:"checkpoint to restore"`
		Paths      []string `json:"paths,omitempty" jsonschema:"paths to restore, relative to the mount; default: everything"`
		Staged     bool     `json:"staged,omitempty" jsonschema:"also restore git's index"`
		DryRun     bool     `json:"dry_run,omitempty" jsonschema:"change nothing, return what would change"`
	}
	forkInput struct {
		Dir        string `json:"dir" jsonschema:"absolute path at which the new session is mounted; created if missing"`
		Checkpoint string `json:"checkpoint,omitempty" jsonschema:"checkpoint to start from; default: the working tree"`
		Session    string `json:"session,omitempty" jsonschema:"name of the new session"`
		Ignored    string `json:"ignored,omitempty" jsonschema:"ignored files it has: all, listed (in .worktreeinclude), none"`
	}
	statusInput struct {
		Full bool `json:"full,omitempty" jsonschema:"return all that artifactfs status --json prints"`
	}
	describeInput struct {
		Title      *string  `json:"title,omitempty" jsonschema:"new title, one line"`
		Task       *string  `json:"task,omitempty" jsonschema:"what the session is to achieve, as text or as a URL"`
		AddTags    []string `json:"add_tags,omitempty" jsonschema:"tags to add, such as area:parser"`
		RemoveTags []string `json:"remove_tags,omitempty" jsonschema:"tags to remove"`
	}
)

// logOutput is the result of the tool log: at most logInput.Limit checkpoints, and whether there are older ones.
type logOutput struct {
	Session     string          `json:"session"`
	Checkpoints []logCheckpoint `json:"checkpoints"`
	More        bool            `json:"more"`
}

// logCheckpoint has those fields of a control.Checkpoint by which an agent chooses a checkpoint.
type logCheckpoint struct {
	ID      string    `json:"id"`
	Time    time.Time `json:"time"`
	Reason  string    `json:"reason"`
	Message string    `json:"message,omitempty"`
	Changed int64     `json:"changed"`
	Pins    []string  `json:"pins,omitempty"`
}

// diffOutput is the result of the tool diff. A long patch is cut, because it would fill the agent's context; then
// Truncated is set, and Cut is a sentence about it.
type diffOutput struct {
	control.SessionDiffReply
	Truncated bool   `json:"truncated"`
	Cut       string `json:"cut,omitempty"`
}

// statusOutput is the short result of the tool status.
type statusOutput struct {
	Dir     string     `json:"dir"`
	Session string     `json:"session"`          // "": the mount has no session
	Branch  string     `json:"branch"`           // git's HEAD: the short name of a branch, or a commit
	Commit  string     `json:"commit"`           // commit that the mount shows
	Changed int64      `json:"changed"`          // number of paths that differ from this commit
	Dirty   bool       `json:"dirty"`            // files or git state changed since the newest checkpoint
	Latest  string     `json:"latest,omitempty"` // newest checkpoint
	Pushed  *time.Time `json:"pushed,omitempty"` // last complete push to another repository; missing: there was none
	Pending int64      `json:"pending"`          // number of refs that are not on the session remote yet
	Error   string     `json:"error,omitempty"`  // reason why the mount is degraded, or why refs are pending
	Notes   []string   `json:"notes,omitempty"`
}

// defaultTools returns the tools that a server offers if the user does not choose others. All agents read their
// schemas at the start of each conversation, so TestSchemasAreSmall limits their size.
func defaultTools() []tool {
	restores := &sdk.ToolAnnotations{DestructiveHint: new(true), IdempotentHint: true, OpenWorldHint: new(false)}
	sets := &sdk.ToolAnnotations{DestructiveHint: new(false), IdempotentHint: true, OpenWorldHint: new(false)}
	return []tool{
		of(sdk.Tool{Name: "checkpoint", Annotations: adds(),
			Description: "Save all files of the working tree, also untracked ones, with git's index, HEAD, branches and " +
				"stashes. Changes nothing in git. Returns the checkpoint's ID; made=false: nothing changed."}, checkpoint),
		of(sdk.Tool{Name: "log", Annotations: looks(),
			Description: "List the session's checkpoints, newest first: ID, time, reason, message, number of changed " +
				"paths, pins."}, log),
		of(sdk.Tool{Name: "diff", Annotations: looks(),
			Description: "Compare two checkpoints, or a checkpoint with the working tree: changed paths with status and " +
				"numbers of lines, and on request the patch (at most 256 KiB)."}, diff),
		of(sdk.Tool{Name: "restore", Annotations: restores,
			Description: "Restore files to their state at a checkpoint. First creates a checkpoint of the current state, " +
				"returned as before; restore that one to undo the restore."}, restore),
		of(sdk.Tool{Name: "fork", Annotations: adds(),
			Description: "Start another session from a checkpoint, and mount it at another directory, to try something " +
				"without changing this working tree. Nothing is copied; the sessions are independent."}, fork),
		of(sdk.Tool{Name: "status", Annotations: looks(),
			Description: "Describe the session: branch, commit, number of changed paths, newest checkpoint, changes since " +
				"it (dirty), number of refs that are not pushed to the session remote (pending)."}, status),
		of(sdk.Tool{Name: "describe", Annotations: sets,
			Description: "Say what this session is for: set its title, task and tags, which people see in lists of " +
				"sessions. Without arguments, return what is set, with owner, expiry and hold."}, describe),
	}
}

func checkpoint(ctx context.Context, w Session, in checkpointInput) (control.CheckpointReply, error) {
	r := control.CheckpointRequest{Dir: w.Mount.Dir, Message: in.Message, Pin: in.Pin, Sync: in.Sync}
	return w.Client.Checkpoint(ctx, r, nil)
}

func log(ctx context.Context, w Session, in logInput) (logOutput, error) {
	if in.Limit <= 0 {
		in.Limit = defaultLog
	}
	// One more checkpoint is requested than the tool returns, to find out whether there are older ones.
	r, err := w.Client.SessionLog(ctx, control.SessionLogRequest{Of: w.Mount.Dir, Limit: in.Limit + 1})
	out := logOutput{Session: r.Session, Checkpoints: []logCheckpoint{}, More: len(r.Checkpoints) > in.Limit}
	for _, c := range r.Checkpoints[:min(len(r.Checkpoints), in.Limit)] {
		out.Checkpoints = append(out.Checkpoints, logCheckpoint{ID: c.ID, Time: c.Time, Reason: c.Reason, Message: c.Message,
			Changed: c.Changed, Pins: c.Pins})
	}
	return out, err
}

func diff(ctx context.Context, w Session, in diffInput) (diffOutput, error) {
	r, err := w.Client.SessionDiff(ctx, control.SessionDiffRequest{Of: w.Mount.Dir, A: in.From, B: in.To, Patch: in.Patch,
		Stat: true})
	out := diffOutput{SessionDiffReply: r}
	if out.Patch = cutText(r.Patch, maxPatch); len(out.Patch) < len(r.Patch) {
		out.Truncated = true
		out.Cut = fmt.Sprintf("the patch has %d bytes and is cut after %d; artifactfs session diff prints all of it",
			len(r.Patch), len(out.Patch))
	}
	return out, err
}

// cutText returns the beginning of a text, at most limit bytes and no part of a character.
func cutText(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	for limit > 0 && !utf8.RuneStart(text[limit]) {
		limit--
	}
	return text[:limit]
}

func restore(ctx context.Context, w Session, in restoreInput) (control.RestoreReply, error) {
	return w.Client.Restore(ctx, control.RestoreRequest{Dir: w.Mount.Dir, ID: in.Checkpoint, Paths: in.Paths,
		Staged: in.Staged, DryRun: in.DryRun}, nil)
}

// fork mounts the new session from the same remote.
func fork(ctx context.Context, w Session, in forkInput) (control.MountReply, error) {
	return w.Client.Fork(ctx, control.ForkRequest{Of: w.Mount.Dir, ID: in.Checkpoint, Ignored: control.Ignored(in.Ignored),
		Mount: control.MountRequest{Remote: w.Mount.Remote, Dir: in.Dir, Session: in.Session}}, nil)
}

// status describes the mount. The mount was looked up for this call, so its status is current.
func status(_ context.Context, w Session, in statusInput) (any, error) {
	m, s := w.Mount, w.Mount.Session
	if in.Full {
		return m, nil
	}
	out := statusOutput{Dir: m.Dir, Session: s.Name, Branch: cmp.Or(m.Head, m.Ref), Commit: m.Commit,
		Changed: m.Overlay.Changed, Dirty: s.Dirty, Latest: s.LastCheckpoint, Pending: s.Pending,
		Error: cmp.Or(m.Error, s.Error), Notes: m.Notes}
	// The embedded session remote is on this host, so an agent must not rely on a push to it.
	if s.Mode != control.RemoteEmbedded {
		out.Pushed = s.LastSync
	}
	return out, nil
}

func describe(ctx context.Context, w Session, in describeInput) (profile.Profile, error) {
	c := &profile.Change{Title: in.Title, Task: in.Task, AddTags: in.AddTags, DelTags: in.RemoveTags}
	r := control.SessionSetRequest{Of: w.Mount.Dir, Actor: session.Actor(), Profile: c}
	info, err := w.Client.SessionSet(ctx, r)
	return info.Profile, err
}
