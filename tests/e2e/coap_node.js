// A device by coap-node, an LWM2M client of others. Each line of standard input is a new voltage, `update` with a new
// lifetime, or `leave`.
// Arguments: the endpoint name and the port of the server.
const CoapNode = require('coap-node');
const SmartObject = require('smartobject');
const objects = new SmartObject();
const reset = { exec: (done) => { console.log('executed'); done(null); } };
objects.init('temperature', 0, { sensorValue: 21.5, units: 'Cel', resetMinMaxMeaValues: reset });
objects.init('setPoint', 0, { setPointValue: 20.5 });
const device = new CoapNode(process.argv[2], objects, { lifetime: 300, manuf: 'Example', model: 'Node' });
device.on('error', (error) => console.log(`error ${error}`));
device.register('127.0.0.1', Number(process.argv[3]), (error, answer) => console.log(error || answer.status));
require('readline').createInterface({ input: process.stdin }).on('line', (line) => {
  if (line.startsWith('update ')) device.update({ lifetime: Number(line.slice(7)) }, (error, answer) => console.log(error || answer.status));
  else if (line === 'leave') device.deregister((error, answer) => console.log(error || answer.status));
  else objects.write('device', 0, 'pwrSrcVoltage', Number(line), (error) => error && console.log(`error ${error}`));
});
