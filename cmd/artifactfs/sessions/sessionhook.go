package sessions

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/session/agenthook"
	"github.com/artifactfs/artifactfs/session/transcript"
)

// sessionHookCommand is what agents run; people run `session hooks`.
func sessionHookCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:    "hook AGENT",
		Hidden: true,
		Short:  "Record an event of a coding agent, which is read from stdin",
		Args:   cli.Arguments(1, 1, "AGENT"),
		RunE: func(cmd *cobra.Command, args []string) error {
			// An exit code other than 0 would be shown to the user of the agent, or stop its tool.
			if err := sessionHook(cmd.Context(), a, args[0]); err != nil {
				fmt.Fprintf(a.Stderr, "artifactfs: record an event of %s: %s\n", args[0], control.AsError(err).Error())
			}
			return nil
		},
	}
}

func sessionHook(ctx context.Context, a *cli.App, name string) error {
	ctx, cancel := context.WithTimeout(ctx, agenthook.Timeout)
	defer cancel()
	agent, err := agenthook.ParseAgent(name)
	if err != nil {
		return err
	}
	if agent == agenthook.Gemini {
		defer fmt.Fprintln(a.Stdout, "{}") // it reads JSON from a hook's stdout
	}
	text, err := io.ReadAll(io.LimitReader(os.Stdin, agenthook.MaxEvent+1))
	if err != nil {
		return fmt.Errorf("read stdin: %w", err)
	}
	event, err := agenthook.Parse(agent, text)
	if err != nil || event.Kind == agenthook.Other {
		return err
	}
	dir := event.Dir
	if dir == "" {
		dir = "."
	}
	all, asked := a.Mounts(ctx)
	m, err := cli.Find(all, asked, "record", dir)
	if e := control.AsError(err); e != nil && e.Code == control.ExitNotMounted {
		return nil // the agent works elsewhere: a configuration can hold for many directories
	}
	if err != nil {
		return err
	}
	if m.Session.Name == "" {
		return nil // a read-only mount has none
	}
	return recordEvent(ctx, a, m, dir, event)
}

// recordEvent does all that belongs to an event, even when a part of it fails.
func recordEvent(ctx context.Context, a *cli.App, m cli.Served, dir string, e agenthook.Event) error {
	var failed []error
	checkpoint := ""
	if e.Changes() || e.Kind == agenthook.TurnEnd {
		title, _ := transcript.Redact(e.Title())
		reply, err := m.Client.Checkpoint(ctx, control.CheckpointRequest{Dir: m.Dir, Message: title}, nil)
		if err != nil {
			failed = append(failed, cli.Failure("checkpoint", m.Dir, err))
		}
		checkpoint = reply.ID
	}
	line, err := e.Record()
	if err == nil {
		_, err = m.Client.SessionRecord(ctx, control.SessionRecordRequest{Dir: m.Dir, Lines: []string{line}})
	}
	if err != nil {
		failed = append(failed, cli.Failure("record", m.Dir, err))
	}
	if err := noteCommits(ctx, a, m, dir, e, checkpoint); err != nil {
		failed = append(failed, cli.Failure("note commits", m.Dir, err))
	}
	return errors.Join(failed...)
}

const (
	maxNotedPrompt = 500 // bytes of the prompt in a note
	maxNoted       = 100 // commits that get a note after one event; a rebase of more is no work of one turn
)

// commitNote is what a commit of an agent is annotated with.
type commitNote struct {
	Agent      agenthook.Agent `json:"agent"`
	Session    string          `json:"agent_session,omitempty"`
	Model      string          `json:"model,omitempty"`
	Prompt     string          `json:"prompt,omitempty"`
	Checkpoint string          `json:"checkpoint,omitempty"`
}

// noteCommits annotates the commits that were made since the event before, and remembers the prompt for the next ones.
func noteCommits(ctx context.Context, a *cli.App, m cli.Served, dir string, e agenthook.Event, checkpoint string) error {
	gitDir, err := gitDirOf(ctx, dir)
	if err != nil {
		return fmt.Errorf("find git directory: %w", err)
	}
	if e.Kind == agenthook.SessionEnd {
		return agenthook.ForgetTurn(gitDir, e.Session)
	}
	turn, known, err := agenthook.LoadTurn(gitDir, e.Session)
	if err != nil {
		return err
	}
	before := turn
	made, err := turn.Commits(gitDir)
	if err != nil {
		return err
	}
	if e.Kind == agenthook.Prompt || e.Kind == agenthook.SessionStart {
		made = nil // they were made between two turns, by the user
	}
	for _, commit := range made[:min(len(made), maxNoted)] {
		note, err := json.Marshal(commitNote{e.Agent, e.Session, e.Model, turn.Prompt, checkpoint})
		if err != nil {
			return err
		}
		if _, err := m.Client.SessionNote(ctx, control.SessionNoteRequest{Dir: m.Dir, Commit: commit, Ref: "agent", JSON: note}); err != nil {
			return err
		}
	}
	if e.Kind == agenthook.Prompt {
		prompt, _ := transcript.Redact(e.Text) // before it is cut, so that no part of a secret is left
		turn.Prompt = strings.ToValidUTF8(prompt[:min(len(prompt), maxNotedPrompt)], "")
	}
	if known && turn == before {
		return nil
	}
	return turn.Save(gitDir, e.Session)
}
