package review

import (
	"context"
	"errors"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/server/gitread"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/session/annotate"
)

// Thread is a thread of annotations with its present position.
type Thread struct {
	annotate.Thread
	// position of the file or of the lines in the checkpoint of the list; nil for a thread about something else
	Now *annotate.Now
}

// Threads are the threads of annotations of a session.
type Threads struct {
	Checkpoint string // checkpoint for which positions are given; "" if the server can read none
	List       []Thread
}

const (
	// maxLocated is the maximum number of threads whose positions are found, the newest ones.
	maxLocated = 500
	// findTime is the maximum time to find the positions of all threads. A file of annotations of a few MB can name
	// thousands of files, each of which has to be compared.
	findTime = 3 * time.Second
)

// Threads returns the threads of a session, oldest first, with their positions in a checkpoint, "" for the newest one.
// It searches for at most findTime; the positions of further threads are unknown.
func (s *Service) Threads(ctx context.Context, by By, repo records.Repo,
	name, checkpoint string) (all Threads, err error) {
	err = s.look(ctx, by, repo, func(v *view) error {
		m, err := v.meta(ctx, name)
		if err != nil {
			return err
		}
		text, err := v.file(ctx, annotationsOf(name))
		if err != nil {
			return err
		}
		p, base, err := v.checkpointOrBase(ctx, name, checkpoint)
		tree := p.Tree
		if base != "" {
			var text string
			if text, err = v.tree(ctx, base); err == nil {
				tree, err = object.ParseIDOf(v.format, text)
			}
		}
		var none *Problem
		switch {
		case errors.As(err, &none) && checkpoint == "": // the server can read neither a checkpoint nor the base commit
		case err != nil:
			return err
		default:
			all.Checkpoint = string(p.ID)
		}
		files := gitread.NewAnnotated(v.git, m.Base)
		for _, t := range annotate.Threads(annotate.Parse(text)) {
			all.List = append(all.List, Thread{Thread: t})
		}
		if tree.IsZero() {
			return nil
		}
		return locate(ctx, all.List, findTime, func(ctx context.Context, t annotate.Thread) (annotate.Now, error) {
			now, err := annotate.Where(ctx, files, t.On, tree)
			if err != nil && ctx.Err() == nil { // for example, the objects of an old checkpoint were removed
				s.o.Log.Info("find annotated lines", zap.String("session", name), zap.String("thread", t.ID), zap.Error(err))
			}
			return now, err
		})
	})
	return all, err
}

// locate sets the positions of the threads about files, of the newest ones first, by the function where. It takes at
// most the time limit.
func locate(ctx context.Context, list []Thread, limit time.Duration,
	where func(context.Context, annotate.Thread) (annotate.Now, error)) error {
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	located := 0
	for i := range slices.Backward(list) {
		t := &list[i]
		if t.On.Path == "" {
			continue
		}
		t.Now = &annotate.Now{State: annotate.Unknown}
		if located++; located > maxLocated || limited.Err() != nil {
			continue
		}
		now, err := where(limited, t.Thread)
		if err == nil {
			t.Now = &now
		}
	}
	return ctx.Err()
}
