package places

import (
	"context"
	"time"
)

const (
	// smallBody is the size, in bytes, up to which the body of a request needs no place.
	smallBody = 16 << 10
	mostBody  = 64       // places for larger bodies
	leastBody = 8        // places for larger bodies on a server with little memory
	bodyPart  = 64 << 20 // memory of git for which there is one of these places
)

// Bodies limits how many large bodies of requests are in memory at the same time, because a client decides how long it
// takes to send one, and the request may wait for another place afterwards.
type Bodies struct{ places *Places }

// NewBodies returns Bodies for a server whose git processes have the memory m; nil: there is no limit. patience is the
// time for which a request waits.
func NewBodies(m *Memory, patience time.Duration) *Bodies {
	most := mostBody
	if m != nil {
		most = int(min(max(m.total/bodyPart, leastBody), mostBody))
	}
	return &Bodies{New(Options{Most: most, MostOf: Parts(most), Patience: patience})}
}

// Enter waits until a request may read its body, whose length is -1 if it is unknown. It returns the same errors as
// Places.Enter. The caller calls release when the body is not needed any more.
func (b *Bodies) Enter(ctx context.Context, length int64, shares ...Share) (release func(), err error) {
	if length >= 0 && length <= smallBody {
		return func() {}, nil
	}
	place, err := b.places.Enter(ctx, Small, shares...)
	if err != nil {
		return nil, err
	}
	return place.Release, nil
}
