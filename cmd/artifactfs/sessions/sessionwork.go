package sessions

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/control"
)

// sessionNoteCommand returns the command "session note". The session must be mounted.
func sessionNoteCommand(a *cli.App) *cobra.Command {
	var of, ref string
	cmd := &cobra.Command{
		Use:   "note [COMMIT] -|JSON",
		Short: "Write JSON about a commit or a checkpoint, as a git note (git log --notes=agent)",
		Long: `Note writes JSON, which is an argument or is read from stdin (-), as a git note on COMMIT (default: HEAD). git notes
--ref=agent and git log --notes=agent show the note. It is pushed to the session remote. If the existing note and the
new one are JSON objects, their members are merged, and new members replace existing ones of the same name; otherwise
the new note replaces the existing one. Text that looks like a secret is removed.

COMMIT is a name of a commit in git. @ (the newest checkpoint), @~1 (the one before it) and the full id of a checkpoint
name the commit in which that checkpoint is stored, as in the other session commands.`,
		Example: `  artifactfs session note '{"model":"m-1","task":"fix login"}'
  artifactfs session note @ '{"tests":"passed"}'
  agent --summary | artifactfs session note HEAD~1 --ref agent --json -
  git log --notes=agent`,
		Args: cli.Arguments(0, 2, "[COMMIT] -|JSON"),
		RunE: func(cmd *cobra.Command, args []string) error {
			commit, text := "", "-"
			if n := len(args); n > 0 && (args[n-1] == "-" || strings.HasPrefix(strings.TrimSpace(args[n-1]), "{")) {
				args, text = args[:n-1], args[n-1]
			} else if n == 2 {
				return cli.Usage(cmd, fmt.Errorf("argument %.40q is neither - nor a JSON object", args[1]))
			} else if cli.IsTerminal(os.Stdin) {
				return cli.Usage(cmd, errors.New("argument is missing: want a JSON object, or - to read it from stdin"))
			}
			if len(args) > 0 {
				commit = args[0]
			}
			return sessionNote(cmd.Context(), a, of, control.SessionNoteRequest{Commit: commit, Ref: ref}, text)
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&ref, "ref", "agent", "write the note to refs/notes/`NAME`")
	ofFlag(a, cmd, &of)
	return cmd
}

// maxNote is the maximum length of a note in bytes. A note of this length fits in a request.
const maxNote = 512 << 10

// sessionNote writes a git note with the JSON in text, or in stdin if text is "-".
func sessionNote(ctx context.Context, a *cli.App, of string, r control.SessionNoteRequest, text string) error {
	content := []byte(text)
	if text == "-" {
		var err error
		if content, err = io.ReadAll(io.LimitReader(os.Stdin, maxNote+1)); err != nil {
			return fmt.Errorf("read stdin: %w", err)
		}
	}
	content = bytes.TrimSpace(content)
	switch {
	case len(content) > maxNote:
		return &control.Error{Code: control.ExitUsage, Verb: "note", Cause: "text is longer than " + cli.BytesOf(maxNote)}
	case len(content) == 0:
		return &control.Error{Code: control.ExitUsage, Verb: "note", Cause: "JSON is missing: stdin was empty",
			Hint: "artifactfs session note --help"}
	case !json.Valid(content):
		return &control.Error{Code: control.ExitUsage, Verb: "note", Cause: "text is not valid JSON",
			Hint: "artifactfs session note --help"}
	}
	r.JSON = content
	w, err := SessionOf(ctx, a, "note", of)
	if err != nil {
		return err
	}
	m, err := w.Mounted("note")
	if err != nil {
		return err
	}
	r.Dir = m.Dir
	reply, err := m.Client.SessionNote(ctx, r)
	if err != nil {
		return cli.Failure("note", m.Dir, err)
	}
	printRedacted(a.Stderr, reply.Redacted)
	if a.JSON {
		return cli.PrintJSON(a.Stdout, reply)
	}
	_, err = fmt.Fprintf(a.Stdout, "noted on %.12s in %s\n", reply.Commit, reply.Ref)
	return err
}

// printRedacted prints how many texts were removed because they looked like secrets; n is this number.
func printRedacted(out io.Writer, n int64) {
	if n > 0 {
		fmt.Fprintf(out, "artifactfs: %s looked like a secret and was removed\n", cli.Plural(n, "text"))
	}
}

// sessionRecordCommand returns the command "session record". The session must be mounted.
func sessionRecordCommand(a *cli.App) *cobra.Command {
	var of string
	cmd := &cobra.Command{
		Use:   "record [FILE|-]",
		Short: "Append JSON lines, such as prompts and tool calls, to the transcript",
		Long: `Record reads JSON objects, one per line, and appends them to the transcript of the session. A record is a prompt, a tool
call, or any other JSON object. Records are stored in refs/afs/transcript/SESSION, each with its time and the newest
checkpoint at that time, and are pushed to the session remote. Text that looks like a secret is removed before anything
is written.

If the input stays open, record appends the lines that it has read at each pause of 0.2 seconds.`,
		Example: `  agent --events | artifactfs session record -C /srv/app
  echo '{"role":"user","text":"fix the login"}' | artifactfs session record
  artifactfs session record turns.jsonl --json`,
		Args: cli.Arguments(0, 1, "[FILE|-]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return sessionRecord(cmd.Context(), a, of, cli.First(args))
		},
	}
	ofFlag(a, cmd, &of)
	return cmd
}

const (
	recordPause = 200 * time.Millisecond // pause in the input after which pending lines are sent
	recordLines = 1000                   // maximum number of lines in a request
	// maximum bytes in a request before its last line is added; quoting at most doubles the size
	recordBytes = 256 << 10
	// MaxRecordLine is the maximum length of a line in bytes.
	MaxRecordLine = 256 << 10
)

// sessionRecord appends the lines of a file, or of stdin, to the transcript. If a request fails, the lines of the
// earlier requests stay recorded, and their number is printed.
func sessionRecord(ctx context.Context, a *cli.App, of, from string) error {
	in := io.Reader(os.Stdin)
	if from != "" && from != "-" {
		f, err := os.Open(from)
		if err != nil {
			return &control.Error{Code: control.ExitUsage, Verb: "record", Object: from, Cause: err.Error()}
		}
		defer f.Close()
		in = f
	}
	w, err := SessionOf(ctx, a, "record", of)
	if err != nil {
		return err
	}
	m, err := w.Mounted("record")
	if err != nil {
		return err
	}
	var total control.SessionRecordReply
	err = Batches(ctx, in, func(lines []string) error {
		reply, err := m.Client.SessionRecord(ctx, control.SessionRecordRequest{Dir: m.Dir, Lines: lines})
		if err != nil {
			return cli.Failure("record", m.Dir, err)
		}
		reply.Lines, reply.Redacted = reply.Lines+total.Lines, reply.Redacted+total.Redacted
		total = reply
		return nil
	})
	printRedacted(a.Stderr, total.Redacted)
	switch {
	case err != nil:
		if total.Lines > 0 {
			fmt.Fprintf(a.Stderr, "artifactfs: recorded %s before that\n", cli.Plural(total.Lines, "line"))
		}
		return err
	case a.JSON:
		return cli.PrintJSON(a.Stdout, total)
	case total.Lines == 0:
		fmt.Fprintln(a.Stdout, "nothing to record")
	default:
		fmt.Fprintf(a.Stdout, "recorded %s in %s\n", cli.Plural(total.Lines, "line"), total.Ref)
	}
	return nil
}

// Batches reads lines from in and calls write with them, in batches. A batch contains all lines that are available, up
// to recordLines lines and recordBytes bytes; it is written at the latest when no new line has arrived for recordPause.
// Batches returns the first error of write or of the input.
func Batches(ctx context.Context, in io.Reader, write func(lines []string) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// A separate goroutine reads the input, so that this goroutine can notice a pause.
	lines, failed := make(chan string, recordLines), make(chan error, 1)
	go func() { // if this goroutine blocks in a read, it ends only with the input or with the process
		failed <- readRecords(ctx, in, lines)
		close(lines)
	}()
	var batch []string
	size := 0
	flush := func() error {
		if len(batch) == 0 {
			return nil
		}
		err := write(batch)
		batch, size = nil, 0
		return err
	}
	pause := time.NewTimer(recordPause)
	defer pause.Stop()
	for {
		select {
		case line, more := <-lines:
			if !more {
				return errors.Join(flush(), <-failed)
			}
			batch, size = append(batch, line), size+len(line)
			if len(batch) >= recordLines || size >= recordBytes {
				if err := flush(); err != nil {
					return err
				}
			}
			pause.Reset(recordPause)
		case <-pause.C:
			if err := flush(); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// readRecords reads lines from in and sends them to the channel lines. It returns an error for a line that is not a
// JSON object.
func readRecords(ctx context.Context, in io.Reader, lines chan<- string) error {
	scanner := bufio.NewScanner(in)
	scanner.Buffer(nil, MaxRecordLine)
	for n := 1; scanner.Scan(); n++ {
		line := bytes.TrimSpace(scanner.Bytes())
		if len(line) == 0 {
			continue
		}
		if line[0] != '{' || !json.Valid(line) {
			return &control.Error{Code: control.ExitUsage, Verb: "record", Object: fmt.Sprintf("line %d", n),
				Cause: "line is not a JSON object"}
		}
		select {
		case lines <- string(line):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if err := scanner.Err(); errors.Is(err, bufio.ErrTooLong) {
		return &control.Error{Code: control.ExitUsage, Verb: "record",
			Cause: "line is longer than " + cli.BytesOf(MaxRecordLine)}
	} else if err != nil {
		return fmt.Errorf("read records: %w", err)
	}
	return nil
}
