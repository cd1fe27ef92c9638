package agents

import (
	"context"
	"errors"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/session/agenthook"
)

// maxBatch is the maximum size in bytes of the records in one request, unless a single record is larger.
const maxBatch = 256 << 10

// recordTexts records the texts that a compaction removes from the context of an agent. The result is the event e with
// the numbers of texts that were recorded and left out. The offset in the agent's file is stored after the texts were
// recorded, so that a compaction that fails and is repeated records each text once.
func recordTexts(ctx context.Context, m cli.Served, gitDir string, e agenthook.Event) (agenthook.Event, error) {
	if gitDir == "" {
		return e, errors.New("git finds no repository")
	}
	turn, _, err := agenthook.LoadTurn(gitDir, e.Session)
	if err != nil {
		return e, err
	}
	from := turn.Compacted
	if e.Sub != "" {
		from = 0 // a sub-agent has a file of its own
	}
	texts, err := agenthook.ReadTexts(e, from)
	if err != nil {
		return e, err
	}
	for lines := texts.Lines; len(lines) > 0; {
		n, size := 0, 0
		for n == 0 || n < len(lines) && size+len(lines[n]) <= maxBatch {
			size, n = size+len(lines[n]), n+1
		}
		_, err := m.Client.SessionRecord(ctx, control.SessionRecordRequest{Dir: m.Dir, Lines: lines[:n]})
		if err != nil {
			return e, err
		}
		e.Kept, lines = e.Kept+n, lines[n:]
	}
	if e.Left = texts.Left; e.Sub != "" || turn.Compacted == texts.End {
		return e, nil
	}
	turn.Compacted = texts.End
	return e, turn.Save(gitDir, e.Session)
}
