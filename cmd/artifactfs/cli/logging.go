package cli

import (
	"bytes"
	"fmt"
	"os"
	"strconv"

	"go.uber.org/zap"
	"go.uber.org/zap/buffer"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sys/unix"
)

// NewLog opens the log that the global flags describe. The parameter level is the default level. The caller must call
// the function close at the end.
func (a *App) NewLog(level zapcore.Level) (log *zap.Logger, close func(), err error) {
	if a.LogLevel != "" {
		if err := level.Set(a.LogLevel); err != nil {
			return nil, nil, fmt.Errorf("open log: %w", err)
		}
	} else if a.Verbose && level > zapcore.InfoLevel {
		level = zapcore.InfoLevel
	}
	conf := zap.NewProductionEncoderConfig()
	conf.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	conf.EncodeDuration = zapcore.StringDurationEncoder
	toJournal := a.LogFile == "" && isJournal(a.Stderr, os.Getenv("JOURNAL_STREAM"))
	if toJournal { // the journal stores the time and the level itself
		conf.TimeKey, conf.LevelKey, conf.ConsoleSeparator = "", "", " "
	}
	encoder := zapcore.NewConsoleEncoder(conf)
	if a.LogFormat == "json" {
		encoder = zapcore.NewJSONEncoder(conf)
	}
	if toJournal {
		encoder = journalEncoder{encoder}
	}
	out, close := zapcore.WriteSyncer(zapcore.Lock(a.Stderr)), func() {}
	if a.LogFile != "" {
		f, err := openLogFile(a.LogFile)
		if err != nil {
			return nil, nil, fmt.Errorf("open log: %w", err)
		}
		out, close = f, f.close
	}
	return zap.New(zapcore.NewCore(encoder, out, level)), close, nil
}

// isJournal reports whether f is connected to systemd's journal. In that case, the environment variable JOURNAL_STREAM
// contains the device and inode of f (systemd.exec(5)). The variable alone is no proof, because a child process
// inherits it even if its output was redirected.
func isJournal(f *os.File, variable string) bool {
	var st unix.Stat_t
	if variable == "" || unix.Fstat(int(f.Fd()), &st) != nil {
		return false
	}
	return variable == strconv.FormatUint(st.Dev, 10)+":"+strconv.FormatUint(st.Ino, 10)
}

// journalEncoder writes the priority before every line (sd-daemon(3)), because the journal stores each line as a
// separate entry.
type journalEncoder struct{ zapcore.Encoder }

// Clone implements zapcore.Encoder.
func (e journalEncoder) Clone() zapcore.Encoder { return journalEncoder{e.Encoder.Clone()} }

// EncodeEntry implements zapcore.Encoder.
func (e journalEncoder) EncodeEntry(entry zapcore.Entry, fields []zapcore.Field) (*buffer.Buffer, error) {
	b, err := e.Encoder.EncodeEntry(entry, fields)
	if err != nil {
		return nil, err
	}
	text := bytes.Clone(b.Bytes())
	b.Reset()
	for line := range bytes.Lines(text) {
		b.AppendByte('<')
		b.AppendInt(priority(entry.Level))
		b.AppendByte('>')
		b.Write(line)
	}
	return b, nil
}

// priority returns the syslog(3) priority of a level.
func priority(l zapcore.Level) int64 {
	switch {
	case l <= zapcore.DebugLevel:
		return 7
	case l == zapcore.InfoLevel:
		return 6
	case l == zapcore.WarnLevel:
		return 4
	case l == zapcore.ErrorLevel:
		return 3
	}
	return 2
}
