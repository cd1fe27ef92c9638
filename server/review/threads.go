package review

import (
	"context"
	"errors"

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

// Threads returns the threads of a session, oldest first, with their positions in a checkpoint, "" for the newest one.
func (s *Service) Threads(ctx context.Context, repo records.Repo, name, checkpoint string) (all Threads, err error) {
	err = s.look(ctx, repo, func(v *view) error {
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
			found := Thread{Thread: t}
			if t.On.Path != "" && !tree.IsZero() {
				now, err := annotate.Where(ctx, files, t.On, tree)
				if ctx.Err() != nil {
					return ctx.Err()
				}
				if err != nil { // for example, the objects of an old checkpoint were removed
					s.o.Log.Info("find annotated lines", zap.String("session", name), zap.String("thread", t.ID), zap.Error(err))
					now = annotate.Now{State: annotate.Unknown}
				}
				found.Now = &now
			}
			all.List = append(all.List, found)
		}
		return nil
	})
	return all, err
}
