// Draws what the element #data holds: curves with dygraphs, and a step's tasks on a canvas. No word of the data becomes markup.
'use strict';
(function () {
  const data = JSON.parse(document.getElementById('data').textContent);
  const numbers = data.numbers;
  const charts = [];
  const select = document.getElementById('axis'), reload = Number(document.documentElement.dataset.reload || 0);
  let zooming = false;

  // What was chosen stays as it is while a page that is live loads again.
  const keep = (name, value) => { try { if (reload) sessionStorage.setItem('tessera-' + name, value); } catch (e) { /* a browser may forbid it */ } };
  const kept = (name) => { try { return reload ? sessionStorage.getItem('tessera-' + name) : null; } catch (e) { return null; } };
  if (select && kept('axis')) select.value = kept('axis');
  let axis = select && select.value ? select.value : 'step';

  const colour = (i) => getComputedStyle(document.documentElement).getPropertyValue(typeof i === 'string' ? i : '--s' + i % 12).trim();
  const element = (name, text, className) => {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    if (className) made.className = className;
    return made;
  };
  const short = (v) => {
    if (v === null || v === undefined || !isFinite(v)) return '–';
    const size = Math.abs(v);
    const unit = [[1e12, ' T'], [1e9, ' G'], [1e6, ' M'], [1e5, ' K']].find((u) => size >= u[0]);
    if (unit && size < 1e16) return Number((v / (unit[1] === ' K' ? 1e3 : unit[0])).toPrecision(4)) + unit[1];
    return size !== 0 && size < 1e-3 ? v.toExponential(2) : String(Number(v.toPrecision(4)));
  };

  // Where a step lies on the axis: its number, or hours since the first one.
  function place(step) {
    if (axis === 'step') return step;
    const steps = numbers.step;
    let low = 0, high = steps.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (steps[middle] < step) low = middle + 1; else high = middle;
    }
    return numbers.time[low] / 3600;
  }

  // Places on the axis, and columns of numbers at them. Several runs have a table for each axis, since each run has places of its own.
  const columnsNow = () => (numbers.axes ? numbers.axes[axis].columns : numbers.columns);
  const places = () => (numbers.axes ? numbers.axes[axis].at : numbers.step.map(place));

  // dygraphs' rows: a place, then of each series a number, or with bands three.
  function rows(chart) {
    const columns = chart.series.map((s) => columnsNow()[s[0]]);
    const bands = chart.bands, points = hasPoints(chart);
    const cell = (column, i) => {
      const mean = column.mean[i];
      if (mean === null) return null;
      return bands ? [column.low ? column.low[i] : mean, mean, column.high ? column.high[i] : mean] : mean;
    };
    const list = places().map((at, i) => [at].concat(columns.map((c) => cell(c, i)), points ? [null] : []));
    if (!points) return list;
    numbers.evaluations.step.forEach((step, i) => {
      const loss = numbers.evaluations.loss[i];
      if (loss !== null) list.push([place(step)].concat(columns.map(() => null), [bands ? [loss, loss, loss] : loss]));
    });
    return list.sort((a, b) => a[0] - b[0]);
  }

  const hasPoints = (chart) => chart.id === 'loss' && !numbers.axes && numbers.evaluations.step.length > 0;

  // Where few steps are far above all others, the end of a scale that shows the others; null where there are none such.
  function clipAt(chart) {
    if (!chart.clip || chart.log || chart.whole) return null;
    const columns = chart.series.map((s) => columnsNow()[s[0]].mean);
    const tops = columns[0].map((_, i) => columns.reduce((top, c) => (chart.stacked ? top + (c[i] || 0) : Math.max(top, c[i] || 0)), 0)).filter((v) => v > 0);
    tops.sort((a, b) => a - b);
    const usual = tops[Math.floor(0.95 * (tops.length - 1))] * 1.25;
    return tops.length > 2 && tops[tops.length - 1] > 1.6 * usual ? usual : null;
  }

  function drawMarks(context, area, graph) {
    context.save();
    context.strokeStyle = colour('--faint');
    context.globalAlpha = 0.5;
    context.setLineDash([3, 3]);
    data.marks.forEach((mark) => {
      const x = graph.toDomXCoord(place(mark.step));
      if (x < area.x || x > area.x + area.w) return;
      context.beginPath();
      context.moveTo(x, area.y);
      context.lineTo(x, area.y + area.h);
      context.stroke();
    });
    context.restore();
  }

  function legend(chart) {
    const target = document.getElementById('legend-' + chart.id);
    return (shown) => {
      if (!target) return '';
      target.replaceChildren();
      shown.series.forEach((series, i) => {
        if (shown.x !== undefined && series.y === undefined) return;
        const part = element('span'), key = element('i');
        key.style.background = colour(i);
        part.append(key, series.label);
        if (shown.x !== undefined) part.append(' ', element('b', short(series.y)));
        target.append(part);
      });
      if (shown.x !== undefined) target.append(element('span', axis === 'step' ? 'step ' + Math.round(shown.x) : axis === 'tokens' ? short(shown.x) + ' tokens' : shown.x.toFixed(2) + ' h'));
      return '';
    };
  }

  function options(chart) {
    const labels = [axis].concat(chart.series.map((s) => s[1]));
    const evaluated = hasPoints(chart), top = clipAt(chart);
    if (evaluated) labels.push('validation');
    return {
      valueRange: top === null ? null : [0, top],
      labels: labels, customBars: chart.bands, stackedGraph: chart.stacked, stackedGraphNaNFill: 'none', logscale: chart.log,
      colors: labels.slice(1).map((_, i) => colour(i)), fillAlpha: chart.stacked ? 0.6 : Number(colour('--band')), strokeWidth: chart.stacked ? 0.7 : 1.3, connectSeparatedPoints: true,
      series: evaluated ? {validation: {drawPoints: true, pointSize: 2.5, strokeWidth: 1}} : {},
      axisLineColor: colour('--line'), gridLineColor: colour('--line'), highlightCircleSize: 3, includeZero: chart.stacked,
      axes: {y: {axisLabelWidth: 56, axisLabelFormatter: short}, x: {axisLabelFormatter: (v) => short(v) + (axis === 'time' ? ' h' : ''), pixelsPerLabel: 70}},
      legend: 'always', legendFormatter: legend(chart), labelsDiv: document.createElement('div'), underlayCallback: drawMarks, animatedZooms: false,
      zoomCallback: (from, to) => zoomAll(chart, from, to)
    };
  }

  // All curves show the same steps.
  function zoomAll(from, least, most) {
    if (zooming) return;
    zooming = true;
    const whole = from.graph.xAxisExtremes();
    const window = least <= whole[0] && most >= whole[1] ? null : [least, most];
    charts.forEach((chart) => { if (chart !== from) chart.graph.updateOptions({dateWindow: window}); });
    zooming = false;
  }

  function drawCurves() {
    data.charts.forEach((chart) => {
      chart.bands = !chart.stacked && chart.series.some((s) => columnsNow()[s[0]].low);
      const target = document.getElementById('chart-' + chart.id);
      chart.graph = new Dygraph(target, rows(chart), options(chart));
      target.dataset.points = places().length;
      charts.push(chart);
      const box = document.querySelector('input[data-log="' + chart.id + '"]');
      if (box) box.addEventListener('change', () => { chart.log = box.checked; chart.graph.updateOptions(options(chart)); });
      const label = document.getElementById('scale-' + chart.id);
      if (label && clipAt(chart) !== null) {
        target.dataset.clipped = 'true';
        label.hidden = false;
        label.firstChild.addEventListener('change', () => { chart.whole = label.firstChild.checked; chart.graph.updateOptions(options(chart)); });
      }
    });
    if (!select) return;
    document.getElementById('choose').hidden = charts.length === 0;
    select.addEventListener('change', () => {
      axis = select.value;
      keep('axis', axis);
      charts.forEach((chart) => chart.graph.updateOptions(Object.assign(options(chart), {file: rows(chart), dateWindow: null})));
    });
  }

  // A step: of each trace its lanes below each other, on one scale of time.
  const kindColours = {'forward': 0, 'backward': 3, 'gather': 2, 'reduce': 1, 'optimizer': 5, 'other': 7, 'recompute': 6, 'weight gradients': 4};
  const laneHeight = 22, headHeight = 18, nameWidth = 84;

  function Timeline(canvas, traces) {
    const most = Math.max.apply(null, traces.map((t) => t.bars.seconds)) * 1e6;
    let least = 0, last = most, pressed = null, at = null;
    const height = traces.reduce((sum, t) => sum + headHeight + laneHeight * t.bars.lanes.length, headHeight);
    const left = () => (canvas.clientWidth < 500 ? 60 : nameWidth);
    const x = (time) => left() + (time - least) / (last - least) * (canvas.clientWidth - left());
    const time = (px) => least + (px - left()) / (canvas.clientWidth - left()) * (last - least);
    const unit = (us) => (us < 1000 ? us.toFixed(0) + ' µs' : us < 1e6 ? (us / 1000).toPrecision(4) + ' ms' : (us / 1e6).toPrecision(4) + ' s');
    const kindColour = (kind, i) => colour(kind in kindColours ? kindColours[kind] : i);

    function draw() {
      const scale = window.devicePixelRatio || 1;
      canvas.style.height = height + 'px';
      canvas.width = canvas.clientWidth * scale;
      canvas.height = height * scale;
      const c = canvas.getContext('2d');
      c.scale(scale, scale);
      c.font = '11px system-ui, sans-serif';
      let y = 0;
      traces.forEach((trace) => {
        c.fillStyle = colour('--ink');
        c.fillText(trace.name + ', ' + unit(trace.bars.seconds * 1e6), 0, y + 13);
        y += headHeight;
        const colours = trace.bars.kinds.map(kindColour);
        trace.bars.lanes.forEach((lane) => {
          c.fillStyle = colour('--faint');
          c.fillText(lane.name, 0, y + 14);
          c.fillStyle = colour('--panel');
          c.fillRect(left(), y + 2, canvas.clientWidth - left(), laneHeight - 4);
          for (let i = 0; i < lane.begin.length; ++i) {
            const begin = Math.max(left(), x(lane.begin[i])), end = Math.min(canvas.clientWidth, x(lane.begin[i] + lane.length[i]));
            if (end < left() || begin > canvas.clientWidth) continue;
            c.fillStyle = colours[lane.kind[i]];
            c.fillRect(begin, y + 2, Math.max(end - begin - 0.3, 0.6), laneHeight - 4);
          }
          y += laneHeight;
        });
      });
      c.fillStyle = colour('--faint');
      for (let i = 0; i <= 4; ++i) {
        const text = unit(least + i / 4 * (last - least)), px = left() + i / 4 * (canvas.clientWidth - left());
        c.fillText(text, Math.min(Math.max(px - c.measureText(text).width / 2, 0), canvas.clientWidth - c.measureText(text).width), height - 5);
      }
      if (pressed !== null && at !== null) {
        c.globalAlpha = 0.2;
        c.fillStyle = colour('--ink');
        c.fillRect(Math.min(pressed, at), 0, Math.abs(at - pressed), height);
      }
      canvas.dataset.drawn = traces.reduce((sum, t) => sum + t.bars.lanes.reduce((n, lane) => n + lane.begin.length, 0), 0);
    }

    function find(px, py) {
      let y = 0;
      for (const trace of traces) {
        y += headHeight;
        for (const lane of trace.bars.lanes) {
          if (py >= y && py < y + laneHeight) {
            const t = time(px), near = (last - least) / canvas.clientWidth;
            for (let i = 0; i < lane.begin.length; ++i)
              if (t >= lane.begin[i] - near && t <= lane.begin[i] + lane.length[i] + near)
                return trace.name + ': ' + trace.bars.names[lane.task[i]] + (lane.tasks[i] > 1 ? ' and ' + (lane.tasks[i] - 1) + ' more' : '') + ', ' +
                  unit(lane.length[i]) + ', from ' + unit(lane.begin[i]);
          }
          y += laneHeight;
        }
      }
      return '';
    }

    const task = document.getElementById('task');
    canvas.addEventListener('pointerdown', (e) => { if (e.pointerType === 'mouse') { pressed = e.offsetX; at = pressed; } });
    canvas.addEventListener('pointermove', (e) => {
      task.textContent = find(e.offsetX, e.offsetY) || 'Point at a task.';
      if (pressed !== null) { at = e.offsetX; draw(); }
    });
    window.addEventListener('pointerup', () => {
      if (pressed !== null && at !== null && Math.abs(at - pressed) > 4) {
        const ends = [time(Math.min(pressed, at)), time(Math.max(pressed, at))];
        least = Math.max(0, ends[0]);
        last = Math.min(most, ends[1]);
      }
      pressed = null;
      at = null;
      draw();
    });
    canvas.addEventListener('dblclick', () => { least = 0; last = most; draw(); });
    const kinds = [];
    traces.forEach((t) => t.bars.kinds.forEach((kind, i) => { if (!kinds.some((k) => k[0] === kind)) kinds.push([kind, kindColour(kind, i)]); }));
    function keys() {
      const target = document.getElementById('legend-timeline');
      target.replaceChildren();
      kinds.forEach((k, i) => {
        const part = element('span'), key = element('i');
        key.style.background = kindColour(k[0], i);
        part.append(key, k[0]);
        target.append(part);
      });
    }
    this.draw = () => { draw(); keys(); };
    this.draw();
  }

  drawCurves();
  const traces = [];
  if (data.step.measured) traces.push({name: 'measured', bars: data.step.measured});
  if (data.step.predicted) traces.push({name: 'predicted', bars: data.step.predicted});
  const canvas = document.getElementById('timeline');
  const timeline = canvas && traces.length > 0 ? new Timeline(canvas, traces) : null;
  let width = window.innerWidth;
  window.addEventListener('resize', () => { if (timeline && window.innerWidth !== width) { width = window.innerWidth; timeline.draw(); } });
  window.matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => {
    charts.forEach((chart) => chart.graph.updateOptions(options(chart)));
    if (timeline) timeline.draw();
  });
  document.documentElement.dataset.charts = charts.length;
  const looksNearer = () => charts.some((chart) => chart.graph.isZoomed()) || !window.getSelection().isCollapsed;
  if (reload) setInterval(() => { if (!looksNearer()) location.reload(); }, 1000 * reload);
})();
