package sessions

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/control"
)

// transcriptOptions contains the flags of session transcript.
type transcriptOptions struct {
	// of is the session, as a name or a directory; "" means the session of the current directory.
	of string
	// turn is the number of the turn to print; 0 means all turns.
	turn int
	// sub is the id of the sub-agent whose records are printed, or the end of the id; "" means all records.
	sub string
	// follow and markdown are the values of --follow and --markdown, which exclude each other.
	follow, markdown bool
}

// sessionTranscriptCommand returns the command "session transcript".
func sessionTranscriptCommand(a *cli.App) *cobra.Command {
	var o transcriptOptions
	cmd := &cobra.Command{
		Use:   "transcript [DIR|SESSION] [--turn N] [--sub ID] [--follow] [--markdown]",
		Short: "Print the transcript of a session",
		Long: `Transcript prints the records that session record and the hooks of coding agents have appended: time, author, kind and
text. Long tool calls are shortened. --json prints each record completely, on one line.

A new turn begins with the record of a user's prompt ("type":"prompt", or "role":"user" with "type":"message" or without
a type), or with a record whose "turn" member differs from that of the previous record. A checkpoint is made before a
prompt is recorded, unless the mount has --checkpoint off: turn:N names this checkpoint in all session commands, and
session restore --turn N restores it.

The records of a sub-agent are indented: the type of the sub-agent and the end of its id precede the kind. They are a
part of the turn in which the sub-agent was started. --sub prints only them.

With --follow, transcript prints new records as they are appended, until Ctrl-C.`,
		Example: `  artifactfs session transcript
  artifactfs session transcript fix-login --turn 3
  artifactfs session transcript --markdown >report.md
  artifactfs session transcript --follow --json | jq -r .record.text`,
		Args: func(cmd *cobra.Command, args []string) error {
			if o.turn < 0 {
				return errors.New("--turn must not be negative")
			}
			if o.markdown && (o.follow || a.JSON) {
				return errors.New("--markdown excludes --follow and --json")
			}
			return atMostOne(cmd, args, o.of)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.of == "" {
				o.of = cli.First(args)
			}
			return sessionTranscript(cmd.Context(), a, o)
		},
		ValidArgsFunction: CompleteSessions(a, 1),
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.IntVar(&o.turn, "turn", 0, "print only turn `N`")
	f.StringVar(&o.sub, "sub", "", "print only records of the sub-agent with this `ID`, or with an ID that ends so")
	f.BoolVarP(&o.follow, "follow", "f", false, "continue to print records as they are appended")
	f.BoolVar(&o.markdown, "markdown", false, "print the transcript as a report in Markdown")
	ofFlag(a, cmd, &o.of)
	return cmd
}

// followPause is the interval at which --follow requests new records.
const followPause = 300 * time.Millisecond

// sessionTranscript prints the transcript. With --follow it then prints new records until ctx ends. In this case, only
// an error before the first reply ends the command, because the daemon may be restarting when a later error occurs.
func sessionTranscript(ctx context.Context, a *cli.App, o transcriptOptions) error {
	w, err := SessionOf(ctx, a, "transcript", o.of)
	if err != nil {
		return err
	}
	printed := map[string]bool{} // IDs of the printed records, which stay the same when erasing rewrites the transcript
	request := control.SessionTranscriptRequest{Of: w.of, Turn: o.turn}
	for {
		reply, err := w.client.SessionTranscript(ctx, request)
		switch {
		case err == nil:
			if err := printTranscript(a, reply, o, printed); err != nil {
				return err
			}
			request.Head = reply.Head
		case !o.follow || ctx.Err() != nil || !errors.Is(err, control.ErrNoServer) && len(printed) == 0 && request.Head == "":
			return cli.Failure("transcript", w.name(), err)
		} // During a takeover, continue the loop: the next worker has the same records.
		if !o.follow {
			return nil
		}
		select {
		case <-time.After(followPause):
		case <-ctx.Done():
			return nil
		}
	}
}

// printTranscript prints the records whose IDs are not in the map printed yet, and adds these IDs to the map.
func printTranscript(a *cli.App, reply control.SessionTranscriptReply, o transcriptOptions,
	printed map[string]bool) error {
	if o.markdown {
		if _, err := fmt.Fprintf(a.Stdout, "# Session %s\n", reply.Session); err != nil {
			return cli.Printed(err)
		}
	}
	for _, r := range reply.Records {
		if printed[r.ID] {
			continue
		}
		printed[r.ID] = true
		if o.sub != "" && !strings.HasSuffix(subOf(r), o.sub) {
			continue
		}
		var err error
		switch {
		case a.JSON:
			err = printLineJSON(a.Stdout, r)
		case o.markdown:
			err = printMarkdown(a.Stdout, r)
		default:
			err = printRecord(a.Stdout, r)
		}
		if err != nil {
			return cli.Printed(err)
		}
	}
	return nil
}

// printLineJSON prints a record as JSON on one line.
func printLineJSON(out io.Writer, r control.TranscriptRecord) error {
	e := json.NewEncoder(out)
	e.SetEscapeHTML(false)
	return e.Encode(r)
}

// commonMembers contains the members that the records of all agents have in common.
type commonMembers struct {
	Type    string          `json:"type"`
	Role    string          `json:"role"`
	Text    string          `json:"text"`
	Content json.RawMessage `json:"content"`
	Tool    string          `json:"tool"`
	Input   json.RawMessage `json:"input"`
	Output  json.RawMessage `json:"output"`
	Failed  bool            `json:"failed"`
	Sub     string          `json:"sub"`      // id of the sub-agent that has made the record
	SubType string          `json:"sub_type"` // type of the sub-agent
}

// subOf returns the id of the sub-agent that has made a record, or "" if no sub-agent has made it.
func subOf(r control.TranscriptRecord) string {
	var s commonMembers
	_ = json.Unmarshal(r.Record, &s) // a record that is no object is of no sub-agent
	return s.Sub
}

// subName returns a short name of the sub-agent that has made a record: its type and the end of its id. It returns ""
// if no sub-agent has made the record.
func (s commonMembers) subName() string {
	id := cli.OneLine(s.Sub)
	return strings.TrimSpace(cli.OneLine(s.SubType) + " " + strings.ToValidUTF8(id[max(0, len(id)-6):], ""))
}

// maxShown is the maximum length in bytes of each part of a tool call that is printed as text.
const maxShown = 200

// readRecord returns the kind of a record, its text, and the name of the sub-agent that has made it. If the kind is
// unknown, the text is the shortened JSON of the record.
func readRecord(r control.TranscriptRecord) (kind, text, sub string) {
	if r.Erased != nil {
		text = "erased by " + r.Erased.By
		if r.Erased.Why != "" {
			text += ": " + r.Erased.Why
		}
		return "erased", text, ""
	}
	var s commonMembers
	if json.Unmarshal(r.Record, &s) != nil {
		return "record", shortened(string(r.Record)), ""
	}
	kind, sub = s.Type, s.subName()
	if kind == "" || kind == "message" {
		kind = s.Role
	}
	if kind == "" {
		kind = "record"
	}
	var content string
	switch {
	case s.Text != "":
		text = s.Text
	case json.Unmarshal(s.Content, &content) == nil && content != "":
		text = content
	case s.Tool == "" && s.Sub != "":
		text = cli.OneLine(s.Sub)
	case s.Tool == "":
		return kind, shortened(string(r.Record)), sub
	}
	if s.Tool != "" {
		text = strings.TrimSpace(s.Tool + " " + shortened(text))
		if len(s.Input) > 0 {
			text += " " + shortened(string(s.Input))
		}
		if len(s.Output) > 0 {
			text += " -> " + shortened(string(s.Output))
		}
		if s.Failed {
			text += " (failed)"
		}
	}
	return kind, text, sub
}

// shortened returns text on one line, cut to maxShown bytes.
func shortened(text string) string {
	text = strings.ToValidUTF8(strings.Join(strings.Fields(text), " "), "?")
	if len(text) > maxShown {
		text = strings.ToValidUTF8(text[:maxShown], "") + "..."
	}
	return text
}

// printRecord prints a record as text. The first record of a turn is preceded by a heading. Records of sub-agents are
// indented.
func printRecord(out io.Writer, r control.TranscriptRecord) error {
	kind, text, sub := readRecord(r)
	indent := ""
	if sub != "" {
		indent, kind = "  ", sub+": "+kind
	}
	if r.Begins {
		if _, err := fmt.Fprintf(out, "== turn %d, checkpoint %s\n", r.Turn, dashed(r.Checkpoint)); err != nil {
			return err
		}
	}
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	for i, l := range lines {
		lines[i] = cli.OneLine(l)
	}
	_, err := fmt.Fprintf(out, "%s%s  %s  %s  %s\n", indent, r.Time.Local().Format(time.DateTime), dashed(r.Actor), kind,
		strings.Join(lines, "\n    "+indent))
	return err
}

// dashed returns text on one line, or "-" if it is empty.
func dashed(text string) string {
	if text == "" {
		return "-"
	}
	return cli.OneLine(text)
}

// printMarkdown prints a record as Markdown.
func printMarkdown(out io.Writer, r control.TranscriptRecord) error {
	kind, text, sub := readRecord(r)
	if r.Begins {
		if _, err := fmt.Fprintf(out, "\n## Turn %d\n\nCheckpoint `%s`\n", r.Turn, dashed(r.Checkpoint)); err != nil {
			return err
		}
	}
	if kind == "subagent_start" {
		if _, err := fmt.Fprintf(out, "\n#### Sub-agent %s\n", sub); err != nil {
			return err
		}
	}
	if sub != "" {
		kind = sub + ": " + kind
	}
	quoted := strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n> ")
	_, err := fmt.Fprintf(out, "\n**%s**, %s, %s\n\n> %s\n", kind, dashed(r.Actor),
		r.Time.UTC().Format(time.RFC3339), quoted)
	return err
}
