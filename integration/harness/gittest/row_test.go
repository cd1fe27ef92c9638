package gittest

import (
	"testing"
	"time"
)

func TestInARow(t *testing.T) {
	const rtt = 100 * time.Millisecond
	start := time.Now()
	log := func(requests ...Request) *Log {
		l := newLog(nil)
		for _, r := range requests {
			l.begin(r)
		}
		return l
	}
	at := func(conn, ms int) Request {
		return Request{Conn: conn, At: start.Add(time.Duration(ms) * time.Millisecond), FirstByte: 10 * time.Millisecond}
	}
	for _, c := range []struct {
		name string
		logs []*Log
		want int
	}{
		{"nothing", []*Log{log()}, 0},
		{"a connection and a request", []*Log{log(at(1, 150))}, 2},
		{"two requests on it", []*Log{log(at(1, 150), at(1, 261))}, 3},
		{"the second on a new connection", []*Log{log(at(1, 150), at(2, 361))}, 4},
		{"the second on a connection opened ahead", []*Log{log(at(1, 150), at(2, 261))}, 3},
		{"two beside each other", []*Log{log(at(1, 150), at(2, 152))}, 2},
		{"two beside each other, and one that waited for either", []*Log{log(at(1, 150), at(2, 152), at(1, 265))}, 3},
		{"on another server", []*Log{log(at(1, 150)), log(at(1, 361), at(1, 472))}, 5},
	} {
		if got := InARow(rtt, c.logs...); got != c.want {
			t.Errorf("%s: %d round trips in a row, want %d", c.name, got, c.want)
		}
	}
}
