package mcp

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/google/jsonschema-go/jsonschema"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/artifactfs/artifactfs/control"
)

const (
	defaultLog = 20        // checkpoints
	maxPatch   = 256 << 10 // bytes of a diff's text that an agent gets at once
)

type (
	checkpointInput struct {
		Message string `json:"message,omitempty" jsonschema:"why this checkpoint is made"`
		Pin     string `json:"pin,omitempty" jsonschema:"name to keep the checkpoint by; letters, digits, dots, dashes and underscores"`
		Sync    bool   `json:"sync,omitempty" jsonschema:"return when the checkpoint is on the session remote"`
	}
	logInput struct {
		Limit int `json:"limit,omitempty" jsonschema:"most checkpoints to list, newest first; default 20"`
	}
	diffInput struct {
		From  string `json:"from,omitempty" jsonschema:"checkpoint to compare from; default: what the session began with"`
		To    string `json:"to,omitempty" jsonschema:"checkpoint to compare with; default: the working tree as it is now"`
		Patch bool   `json:"patch,omitempty" jsonschema:"return the text of the differences too, as git diff prints it"`
	}
	restoreInput struct {
		Checkpoint string   `json:"checkpoint" jsonschema:"checkpoint to go back to"`
		Paths      []string `json:"paths,omitempty" jsonschema:"files and directories to bring back, relative to the root of the mount; default: everything"`
		Staged     bool     `json:"staged,omitempty" jsonschema:"bring git's index back too"`
		DryRun     bool     `json:"dry_run,omitempty" jsonschema:"change nothing, return what would change"`
	}
	forkInput struct {
		Dir        string `json:"dir" jsonschema:"absolute path of the directory to mount the new session at; it is made if it is missing"`
		Checkpoint string `json:"checkpoint,omitempty" jsonschema:"checkpoint to begin at; default: the working tree as it is now"`
		Session    string `json:"session,omitempty" jsonschema:"name of the new session"`
	}
	noteInput struct {
		Note   map[string]any `json:"note" jsonschema:"JSON object to write; its members are merged into a note that is there already"`
		Commit string         `json:"commit,omitempty" jsonschema:"commit to annotate, as git names it; default HEAD"`
		Ref    string         `json:"ref,omitempty" jsonschema:"name below refs/notes; default agent"`
	}
	transcriptInput struct {
		Records []map[string]any `json:"records" jsonschema:"JSON objects to append, such as a turn, a tool call or a decision"`
	}
	statusInput   struct{}
	prefetchInput struct {
		Paths []string `json:"paths,omitempty" jsonschema:"paths, directories or patterns relative to the root of the mount; default: everything"`
		Wait  bool     `json:"wait,omitempty" jsonschema:"return when the contents are on this host"`
	}
)

type logOutput struct {
	control.SessionLogReply
	More bool `json:"more" jsonschema:"there are older checkpoints"`
}

type diffOutput struct {
	control.SessionDiffReply
	Truncated bool `json:"truncated" jsonschema:"the patch was longer than 256 KiB and is cut"`
}

func addTools(s *sdk.Server, find Find) {
	no, yes := new(bool), new(bool)
	*yes = true
	looks := &sdk.ToolAnnotations{ReadOnlyHint: true, OpenWorldHint: no}
	adds := &sdk.ToolAnnotations{DestructiveHint: no, OpenWorldHint: no}

	add(s, find, &sdk.Tool{Name: "checkpoint", Annotations: adds,
		Description: "Keep all files of the working tree as they are now, untracked ones too, with git's index, HEAD, branches and stashes. Returns the checkpoint's id. If nothing changed since the last checkpoint, returns that one with made=false. Does not touch git."},
		func(ctx context.Context, w Session, in checkpointInput) (control.CheckpointReply, error) {
			return w.Client.Checkpoint(ctx, control.CheckpointRequest{Dir: w.Mount.Dir, Message: in.Message, Pin: in.Pin, Sync: in.Sync}, nil)
		})
	add(s, find, &sdk.Tool{Name: "log", Annotations: looks,
		Description: "List the session's checkpoints, newest first: id, time, reason, message, number of changed paths, pins."},
		func(ctx context.Context, w Session, in logInput) (logOutput, error) {
			if in.Limit <= 0 {
				in.Limit = defaultLog
			}
			r, err := w.Client.SessionLog(ctx, control.SessionLogRequest{Of: w.Mount.Dir, Limit: in.Limit + 1})
			more := len(r.Points) > in.Limit
			r.Points = r.Points[:min(len(r.Points), in.Limit)]
			return logOutput{r, more}, err
		})
	add(s, find, &sdk.Tool{Name: "diff", Annotations: looks,
		Description: "Compare two checkpoints, or a checkpoint with the working tree: changed paths with their status and numbers of lines, and on request the patch."},
		func(ctx context.Context, w Session, in diffInput) (diffOutput, error) {
			r, err := w.Client.SessionDiff(ctx, control.SessionDiffRequest{Of: w.Mount.Dir, A: in.From, B: in.To, Patch: in.Patch, Stat: true})
			cut := len(r.Patch) > maxPatch
			r.Patch = r.Patch[:min(len(r.Patch), maxPatch)]
			return diffOutput{r, cut}, err
		})
	add(s, find, &sdk.Tool{Name: "restore", Annotations: &sdk.ToolAnnotations{DestructiveHint: yes, IdempotentHint: true, OpenWorldHint: no},
		Description: "Bring files back to what they were at a checkpoint. A checkpoint of what is there now is made first and returned as before; restoring that undoes it."},
		func(ctx context.Context, w Session, in restoreInput) (control.RestoreReply, error) {
			return w.Client.Restore(ctx, control.RestoreRequest{Dir: w.Mount.Dir, ID: in.Checkpoint, Paths: in.Paths, Staged: in.Staged, DryRun: in.DryRun}, nil)
		})
	add(s, find, &sdk.Tool{Name: "fork", Annotations: adds,
		Description: "Begin another session at a checkpoint and mount it at another directory. Nothing is copied or downloaded; afterwards the two sessions are independent. Use it to try something without touching this working tree."},
		func(ctx context.Context, w Session, in forkInput) (control.MountReply, error) {
			return w.Client.Fork(ctx, control.ForkRequest{Of: w.Mount.Dir, ID: in.Checkpoint,
				Mount: control.MountRequest{Remote: w.Mount.Remote, Dir: in.Dir, Session: in.Session}}, nil)
		})
	add(s, find, &sdk.Tool{Name: "note", Annotations: adds,
		Description: "Write a JSON object as a git note on a commit (git log --notes=agent shows it). Secrets are removed before it is written."},
		func(ctx context.Context, w Session, in noteInput) (control.SessionNoteReply, error) {
			text, err := json.Marshal(in.Note)
			if err != nil {
				return control.SessionNoteReply{}, fmt.Errorf("encode note: %w", err)
			}
			return w.Client.SessionNote(ctx, control.SessionNoteRequest{Dir: w.Mount.Dir, Commit: in.Commit, Ref: in.Ref, JSON: text})
		})
	add(s, find, &sdk.Tool{Name: "transcript", Annotations: adds,
		Description: "Append records to the session's transcript, linked to the newest checkpoint. Secrets are removed before they are written."},
		func(ctx context.Context, w Session, in transcriptInput) (control.SessionRecordReply, error) {
			lines := make([]string, 0, len(in.Records))
			for _, record := range in.Records {
				line, err := json.Marshal(record)
				if err != nil {
					return control.SessionRecordReply{}, fmt.Errorf("encode record: %w", err)
				}
				lines = append(lines, string(line))
			}
			return w.Client.SessionRecord(ctx, control.SessionRecordRequest{Dir: w.Mount.Dir, Lines: lines})
		})
	add(s, find, &sdk.Tool{Name: "status", Annotations: looks,
		Description: "Describe the mount and its session: commit, changed paths, contents that are on this host, newest checkpoint, what is not on the session remote yet."},
		func(_ context.Context, w Session, _ statusInput) (control.MountStatus, error) { return w.Mount, nil })
	add(s, find, &sdk.Tool{Name: "prefetch", Annotations: &sdk.ToolAnnotations{DestructiveHint: no, IdempotentHint: true, OpenWorldHint: yes},
		Description: "Fetch file contents from the remote before they are read."},
		func(ctx context.Context, w Session, in prefetchInput) (control.PrefetchReply, error) {
			return w.Client.Prefetch(ctx, control.PrefetchRequest{Dir: w.Mount.Dir, Paths: in.Paths, Wait: in.Wait}, nil)
		})
}

// add adds a tool that does its work in the session that find returns.
func add[In, Out any](s *sdk.Server, find Find, tool *sdk.Tool, do func(context.Context, Session, In) (Out, error)) {
	tool.OutputSchema = openSchema[Out]()
	sdk.AddTool(s, tool, func(ctx context.Context, _ *sdk.CallToolRequest, in In) (*sdk.CallToolResult, Out, error) {
		var out Out
		w, err := find(ctx, tool.Name)
		if err == nil {
			out, err = do(ctx, w, in)
		}
		if err != nil {
			e := *control.AsError(err)
			if e.Verb == "" {
				e.Verb, e.Object = tool.Name, w.Mount.Dir
			}
			return nil, out, &e
		}
		return nil, out, nil
	})
}

// openSchema returns the schema of T without the claim that there are no further properties: replies gain fields.
func openSchema[T any]() *jsonschema.Schema {
	schema, err := jsonschema.For[T](nil)
	if err != nil {
		panic(err) // T is a type of this program, and every test has its schema made
	}
	var open func(s *jsonschema.Schema)
	open = func(s *jsonschema.Schema) {
		if s == nil {
			return
		}
		if s.Properties != nil {
			s.AdditionalProperties = nil
		}
		for _, property := range s.Properties {
			open(property)
		}
		open(s.Items)
	}
	open(schema)
	return schema
}
