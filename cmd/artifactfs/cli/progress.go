package cli

import (
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/control"
)

const (
	quietStart = 150 * time.Millisecond // a shorter operation shows no progress
	redraw     = 100 * time.Millisecond // interval between two updates of the line on a terminal
	plainPause = time.Second            // shortest interval between two plain lines of the same phase
)

// Progress shows the progress of an operation on stderr. On a terminal, the progress is one line that is redrawn.
// Otherwise it is printed as plain lines, but only if verbose is set. Messages are printed in both cases, each on a
// separate line.
type Progress struct {
	out      *os.File
	terminal bool
	plain    bool
	start    time.Time
	quit     chan struct{}
	done     sync.WaitGroup

	mu      sync.Mutex
	current control.Progress
	drawn   bool      // whether the terminal's line has text that must be cleared
	printed time.Time // time of the last plain line
	phase   string    // phase of the last plain line
}

// NewProgress starts the display. The caller must call Stop.
func (a *App) NewProgress() *Progress {
	_, err := unix.IoctlGetTermios(int(a.Stderr.Fd()), unix.TCGETS)
	p := &Progress{out: a.Stderr, terminal: err == nil && os.Getenv("TERM") != "dumb", start: time.Now(),
		quit: make(chan struct{})}
	p.plain = a.Verbose && !p.terminal
	if p.terminal {
		p.done.Go(p.tick)
	}
	return p
}

// tick redraws the line regularly, so that the elapsed time advances.
func (p *Progress) tick() {
	next := time.After(quietStart)
	for {
		select {
		case <-next:
			p.mu.Lock()
			p.drawLocked()
			p.mu.Unlock()
			next = time.After(redraw)
		case <-p.quit:
			return
		}
	}
}

// Show displays the step. It is the callback of control.Client's methods, and is safe for concurrent use.
func (p *Progress) Show(step control.Progress) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if step.Message != "" {
		p.clearLocked()
		fmt.Fprintf(p.out, "artifactfs: %s\n", OneLine(step.Message))
	}
	p.current = step
	now := time.Now()
	if p.plain && (step.Phase != p.phase || now.Sub(p.printed) >= plainPause) {
		p.phase, p.printed = step.Phase, now
		fmt.Fprintln(p.out, p.lineLocked())
	}
}

// Stop ends the display and clears the line.
func (p *Progress) Stop() {
	close(p.quit)
	p.done.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clearLocked()
}

// drawLocked redraws the line on the terminal. The caller holds p.mu.
func (p *Progress) drawLocked() {
	if p.current.Phase == "" {
		return
	}
	line := p.lineLocked()
	if size, err := unix.IoctlGetWinsize(int(p.out.Fd()), unix.TIOCGWINSZ); err == nil && size.Col > 1 &&
		len(line) >= int(size.Col) {
		line = line[:size.Col-1] // cut the line, because clearLocked clears only one line of the terminal
	}
	p.drawn = true
	fmt.Fprintf(p.out, "\r\x1b[K%s", line)
}

// clearLocked clears the line on the terminal. The caller holds p.mu.
func (p *Progress) clearLocked() {
	if p.drawn {
		fmt.Fprint(p.out, "\r\x1b[K")
		p.drawn = false
	}
}

// lineLocked returns the current step and the elapsed time. The caller holds p.mu.
func (p *Progress) lineLocked() string {
	return describe(p.current) + "  " + Seconds(time.Since(p.start))
}

// describe formats a step: "trees  12,345 objects", "prefetch  3.0 MiB of 9.1 MiB (33 %)".
func describe(s control.Progress) string {
	number, unit := Count, " "+s.Unit
	if s.Unit == "bytes" {
		number, unit = BytesOf, ""
	}
	phase := OneLine(s.Phase)
	switch {
	case s.Total > 0:
		return fmt.Sprintf("%s  %s of %s%s (%d %%)", phase, number(s.Done), number(s.Total), unit,
			min(s.Done, s.Total)*100/s.Total)
	case s.Done > 0:
		return fmt.Sprintf("%s  %s%s", phase, number(s.Done), unit)
	}
	return phase
}
